use super::super::{Dataset, prepare};
use crate::test_vocabulary::TestFolder;

/// The rows as text, with what is learned between ⟦ and ⟧.
fn shown(folder: &TestFolder, dataset: &Dataset) -> Vec<String> {
    let vocabulary = folder.vocabulary("vocabulary.gguf");
    let rows = dataset.train.iter();
    rows.map(|row| row.marked(vocabulary.tokenizer())).collect()
}

#[test]
fn texts_and_completions_end_with_the_token_for_it() {
    let folder = TestFolder::new("ends");
    folder.write("a.jsonl", "{\"text\": \"Once upon a time\"}\n");
    folder.write(
        "b.jsonl",
        "{\"prompt\": \"Who came?\", \"completion\": \" A fox.\"}\n",
    );
    folder.write(
        "c.csv",
        "prompt,completion\n\"Who, then?\",\"A \"\"bear\"\".\"\n",
    );
    folder.write("d.tsv", "prompt\tcompletion\nWho, then?\tAn owl.\n");
    folder.write("e.json", "{\"n\": 1, \"rows\": [{\"text\": \"A story.\"}]}");
    let text = "dataset: [DIR/a.jsonl, DIR/b.jsonl, DIR/c.csv, DIR/d.tsv, DIR/e.json]\n";
    let dataset = folder.prepare(text).expect("rows");
    let rows = shown(&folder, &dataset);
    let vocabulary = folder.vocabulary("vocabulary.gguf");
    let eos = vocabulary.tokenizer().eos().expect("it has one");
    let eos = String::from_utf8_lossy(vocabulary.tokenizer().piece(eos)).into_owned();
    assert!(rows[0].ends_with(&format!(" time{eos}⟧")), "{}", rows[0]);
    assert_eq!(rows[1], format!("Who came?⟦ A fox.{eos}⟧"));
    assert_eq!(rows[2], format!("Who, then?⟦A \"bear\".{eos}⟧"));
    assert_eq!(rows[3], format!("Who, then?⟦An owl.{eos}⟧"));
    assert_eq!(
        dataset.train.iter().map(|row| row.id).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4]
    );
    let dataset = folder
        .prepare("dataset: DIR/b.jsonl\ntrain_on_inputs: true\n")
        .expect("rows");
    let row = &dataset.train[0];
    assert_eq!(row.labels.count(), row.tokens.len() - 1);
}

#[test]
fn a_text_has_one_token_that_begins_it() {
    let folder = TestFolder::new("begins");
    folder.write(
        "a.jsonl",
        "{\"text\": \"<s>Once\"}\n{\"text\": \"Once more\"}\n",
    );
    let config = folder.config("dataset: DIR/a.jsonl\n");
    let vocabulary = folder.vocabulary("bos.gguf");
    let dataset = prepare(&config, &vocabulary).expect("rows");
    let bos = vocabulary.tokenizer().bos().expect("it has one");
    for row in &dataset.train {
        assert_eq!(row.tokens.iter().filter(|id| **id == bos).count(), 1);
        assert_eq!(row.tokens[0], bos);
    }
    // The template writes it, and tokenizing does not add another one.
    folder.write(
        "b.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Ho\"}]}\n",
    );
    let config = folder.config("dataset: DIR/b.jsonl\nchat_template: gemma\n");
    let dataset = prepare(&config, &vocabulary).expect("rows");
    assert_eq!(
        dataset.train[0]
            .tokens
            .iter()
            .filter(|id| **id == bos)
            .count(),
        1
    );
}

const TALK: &str = r#"{"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "So long. <|im_end|>"}]}"#;

fn talk() -> String {
    TALK.replace('\n', " ") + "\n"
}

#[test]
fn the_assistant_s_turns_are_learned_with_the_tokens_that_end_them() {
    let folder = TestFolder::new("turns");
    folder.write("a.jsonl", talk());
    let dataset = folder
        .prepare("dataset: DIR/a.jsonl\nchat_template: chatml\n")
        .expect("rows");
    let expected = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\
        ⟦Hello.<|im_end|>⟧\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n⟦So long. <|im_end|><|im_end|>⟧\n";
    assert_eq!(shown(&folder, &dataset), [expected]);
    // A text in a message never becomes a control token.
    let vocabulary = folder.vocabulary("vocabulary.gguf");
    let end = vocabulary
        .tokenizer()
        .token(b"<|im_end|>")
        .expect("a token");
    assert_eq!(
        dataset.train[0]
            .tokens
            .iter()
            .filter(|id| **id == end)
            .count(),
        5
    );
}

/// Marks, and the same template without them, give the same labels.
#[test]
fn marks_of_the_template_say_what_is_learned() {
    let folder = TestFolder::new("marks");
    folder.write("a.jsonl", talk());
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}\
        {{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    folder.write("chat_template.jinja", template);
    let marks = folder
        .prepare("dataset: DIR/a.jsonl\nchat_template_path: DIR\n")
        .expect("rows");
    let grown = folder
        .prepare("dataset: DIR/a.jsonl\nchat_template: chatml\n")
        .expect("rows");
    assert_eq!(marks.report.template_marks, Some(true));
    assert_eq!(grown.report.template_marks, Some(false));
    assert_eq!(marks.train, grown.train);
}

#[test]
fn messages_can_say_that_they_are_not_learned() {
    let folder = TestFolder::new("train-false");
    let row = talk().replacen("\"Hello.\"", "\"Hello.\", \"train\": false", 1);
    folder.write("a.jsonl", &row);
    folder.write(
        "chat_template.jinja",
        "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}\
        {{ m.content }}{% endgeneration %}{% else %}U:{{ m.content }}{% endif %}{% endfor %}",
    );
    for template in ["chat_template: chatml", "chat_template_path: DIR"] {
        let dataset = folder
            .prepare(&format!("dataset: DIR/a.jsonl\n{template}\n"))
            .expect("rows");
        let row = &shown(&folder, &dataset)[0];
        assert!(
            row.contains("⟦So long.") && !row.contains("⟦Hello"),
            "{row}"
        );
        let all = format!("dataset: DIR/a.jsonl\n{template}\ntrain_on_inputs: true\n");
        let dataset = folder.prepare(&all).expect("rows");
        let row = &shown(&folder, &dataset)[0];
        let skipped = row
            .split('⟧')
            .nth(1)
            .and_then(|rest| rest.split('⟦').next());
        assert!(
            skipped.is_some_and(|text| text.starts_with("Hello.")),
            "{row}"
        );
    }
}

/// A template that leaves out the reasoning of earlier turns, as Qwen3's: they are learned as they stand.
#[test]
fn turns_that_change_as_history_are_learned_as_they_stand() {
    let folder = TestFolder::new("history");
    let row = talk().replace("Hello.", "<think>\\nhm\\n</think>\\n\\nHello.");
    folder.write("a.jsonl", row);
    folder.write("chat_template.jinja", "{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}\
        {% else %}{{ m.content }}{% endif %}<|im_end|>{{ '\n' }}{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    let dataset = folder
        .prepare("dataset: DIR/a.jsonl\nchat_template_path: DIR\n")
        .expect("rows");
    let row = &shown(&folder, &dataset)[0];
    assert!(
        row.contains("assistant\n⟦Hello.<|im_end|>⟧\n<|im_start|>user"),
        "{row}"
    );
    assert_eq!(dataset.report.train.n_turns_lost, 0);
}

#[test]
fn forms_of_other_tools_become_conversations() {
    let folder = TestFolder::new("forms");
    folder.write(
        "sharegpt.jsonl",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, \
        {\"from\": \"gpt\", \"value\": \"Ho\"}], \"system\": \"S\", \"id\": 7}\n",
    );
    folder.write(
        "alpaca.jsonl",
        "{\"instruction\": \"Add.\", \"input\": \"1 1\", \"output\": \"2\"}\n",
    );
    folder.write(
        "pairs.jsonl",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"Q\"}], \
        \"completion\": [{\"role\": \"assistant\", \"content\": \"A\"}]}\n",
    );
    folder.write("prefs.jsonl", "{\"chosen\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \
        \"content\": \"good\"}], \"rejected\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \
        \"content\": \"bad\"}]}\n");
    folder.write(
        "texts.jsonl",
        "{\"chosen\": \"Who came? A fox\", \"rejected\": \"Who came? An owl\"}\n",
    );
    let files =
        ["sharegpt", "alpaca", "pairs", "prefs", "texts"].map(|name| format!("DIR/{name}.jsonl"));
    let text = format!("dataset: [{}]\nchat_template: chatml\n", files.join(", "));
    let dataset = folder.prepare(&text).expect("rows");
    let rows = shown(&folder, &dataset);
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let answer = |text: &str| format!("<|im_start|>assistant\n⟦{text}<|im_end|>⟧\n");
    assert_eq!(
        rows[0],
        turn("system", "S") + &turn("user", "Hi") + &answer("Ho")
    );
    assert_eq!(rows[1], turn("user", "Add.\n1 1") + &answer("2"));
    assert_eq!(rows[2], turn("user", "Q") + &answer("A"));
    assert_eq!(rows[3], turn("user", "Q") + &answer("good"));
    assert!(rows[4].starts_with("Who came?⟦ A fox"), "{}", rows[4]);
    let names: Vec<_> = dataset
        .report
        .train
        .files
        .iter()
        .map(|file| file.form.name())
        .collect();
    assert_eq!(
        names,
        [
            "sharegpt",
            "alpaca",
            "prompt_completion",
            "preference",
            "preference"
        ]
    );
    let unused: Vec<_> = dataset.report.train.files[0]
        .unused_columns
        .iter()
        .collect();
    assert_eq!(unused, ["id"]);
}

#[test]
fn tokens_with_labels_are_taken_as_they_are() {
    let folder = TestFolder::new("tokens");
    folder.write(
        "a.jsonl",
        "{\"input_ids\": [5, 6, 7, 8], \"labels\": [-100, -100, 7, 8]}\n\
        {\"input_ids\": [9, 6, 7], \"completion_mask\": [1, 0, 1]}\n{\"input_ids\": [9, 6, 8]}\n",
    );
    let dataset = folder.prepare("dataset: DIR/a.jsonl\n").expect("rows");
    let labels: Vec<Vec<u32>> = dataset
        .train
        .iter()
        .map(|row| row.labels.positions().collect())
        .collect();
    assert_eq!(labels, [vec![2, 3], vec![2], vec![1, 2]]);
    assert_eq!(dataset.train[0].tokens, [5, 6, 7, 8]);
}

/// What the model writes around its reasoning are control tokens in some vocabularies: an answer may have them.
#[test]
fn answers_may_have_control_tokens_and_questions_may_not() {
    let folder = TestFolder::new("answers");
    folder.write(
        "a.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"<think>\"}, \
        {\"role\": \"assistant\", \"content\": \"<think>hm</think>Ho<|im_end|>\"}]}\n",
    );
    let dataset = folder
        .prepare("dataset: DIR/a.jsonl\nchat_template: chatml\n")
        .expect("rows");
    let vocabulary = folder.vocabulary("vocabulary.gguf");
    let count = |piece: &str| {
        let id = vocabulary
            .tokenizer()
            .token(piece.as_bytes())
            .expect("a token");
        dataset.train[0]
            .tokens
            .iter()
            .filter(|other| **other == id)
            .count()
    };
    assert_eq!(["<think>", "</think>", "<|im_end|>"].map(count), [1, 1, 2]);
}

/// A few templates leave the token that ends a turn out of their marks, and some write none.
#[test]
fn the_token_that_ends_a_turn_is_learned_or_its_absence_reported() {
    let folder = TestFolder::new("open");
    folder.write("a.jsonl", talk());
    let template = |end: &str| {
        format!(
            "{{% for m in messages %}}<|im_start|>{{% if m.role == 'assistant' %}}{{% generation %}}{{{{ m.content }}}}\
             {{% endgeneration %}}{{% else %}}{{{{ m.content }}}}{{% endif %}}{end}{{% endfor %}}"
        )
    };
    let text = "dataset: DIR/a.jsonl\nchat_template_path: DIR\n";
    folder.write("chat_template.jinja", template("<|im_end|>"));
    let dataset = folder.prepare(text).expect("rows");
    let row = &shown(&folder, &dataset)[0];
    assert!(row.contains("⟦Hello.<|im_end|>⟧"), "{row}");
    assert_eq!(dataset.report.train.n_open, 0);
    folder.write("chat_template.jinja", template(" / "));
    let dataset = folder.prepare(text).expect("rows");
    assert_eq!(dataset.report.train.n_open, 1);
}
