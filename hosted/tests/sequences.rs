//! Several texts in one session, and several sessions on one team: no text depends on another.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice::file::LoadMode;
use sluice::generate::{EndReason, GenerateError};
use sluice::host::topology::Cores;
use sluice::model::ModelSource;
use sluice::sequence::{ChoiceContext, ChoiceError, Choose};
use sluice::session::StepHooks;
use sluice::{Limits, Model, Sequence, Session, Settings, Team};
use std::sync::OnceLock;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tale-5.8m-Q4_K_M.gguf");
const PROMPTS: [&str; 3] = [
    "Once upon a time",
    "The sea was calm that morning, and the old lighthouse keeper climbed the stairs",
    "Tom had a red ball.",
];

fn model() -> &'static Model {
    static MODEL_ONCE: OnceLock<Model> = OnceLock::new();
    MODEL_ONCE.get_or_init(|| Model::open(MODEL).unwrap())
}

fn session(n_seq: usize) -> Session {
    let limits = Limits {
        n_ctx: 64 * 2 * n_seq,
        n_seq,
        n_batch: 8,
        ..Limits::default()
    };
    model().session(limits).unwrap()
}

fn settings(seed: u64, number: u32) -> Settings {
    let mut settings = Settings {
        number,
        n_predict: Some(24),
        ..Settings::default()
    };
    settings.sampler.seed = seed;
    settings
}

/// What a text is when it is alone.
fn alone(prompt: &str, settings: &Settings) -> String {
    let mut session = session(1);
    let pieces = session.generate(prompt, settings.clone());
    pieces.map(Result::unwrap).collect()
}

/// Writes all texts to their ends, together.
fn together(session: &mut Session, sequences: &mut [&mut Sequence]) -> Vec<String> {
    let mut texts = vec![String::new(); sequences.len()];
    while sequences.iter().any(|sequence| sequence.ended().is_none()) {
        for event in session.step(sequences).unwrap() {
            texts[event.sequence].push_str(&event.piece);
        }
    }
    texts
}

#[test]
fn owners_go_to_other_threads() {
    const fn goes<T: Send + 'static>() {}
    const fn is_shared<T: Clone + Send + Sync + 'static>() {}
    goes::<Session>();
    goes::<Sequence>();
    goes::<sluice::Generator>();
    is_shared::<Model>();
    is_shared::<Team>();
}

#[test]
fn a_text_is_the_same_in_any_slot_and_any_company() {
    let asked: Vec<_> = (0..3u32).map(|i| settings(7, i)).collect();
    let expected: Vec<_> = PROMPTS
        .iter()
        .zip(&asked)
        .map(|(p, s)| alone(p, s))
        .collect();
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mut session = session(3);
        let mut begun = order.map(|i| session.begin(PROMPTS[i], &asked[i]).unwrap());
        let [a, b, c] = &mut begun;
        let texts = together(&mut session, &mut [a, b, c]);
        assert_eq!(texts, order.map(|i| expected[i].clone()));
    }
}

#[test]
fn the_random_stream_is_the_choice_and_not_the_slot() {
    let mut session = session(2);
    let mut a = session.begin(PROMPTS[0], &settings(3, 0)).unwrap();
    let mut b = session.begin(PROMPTS[0], &settings(3, 0)).unwrap();
    let texts = together(&mut session, &mut [&mut a, &mut b]);
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0], alone(PROMPTS[0], &settings(3, 0)));
    assert_ne!(texts[0], alone(PROMPTS[0], &settings(3, 1)));
    assert_ne!(texts[0], alone(PROMPTS[0], &settings(4, 0)));
}

#[test]
fn a_fork_goes_on_from_the_same_text() {
    let mut session = session(2);
    let mut first = session.begin(PROMPTS[1], &settings(1, 0)).unwrap();
    while first.queue().len() != 1 {
        session.step(&mut [&mut first]).unwrap();
    }
    let mut fork = session.fork(&first, &settings(1, 5)).unwrap();
    assert_eq!(fork.tokens(), first.tokens());
    let rest = together(&mut session, &mut [&mut first, &mut fork]);
    assert!(alone(PROMPTS[1], &settings(1, 0)).ends_with(&rest[0]));
    assert_ne!(rest[0], rest[1], "another choice of the same request");
}

#[test]
fn sequences_come_and_go() {
    let mut first = session(2);
    let a = first.begin(PROMPTS[0], &settings(0, 0)).unwrap();
    let b = first.begin(PROMPTS[1], &settings(0, 0)).unwrap();
    let refused = first.begin(PROMPTS[2], &settings(0, 0));
    assert!(matches!(
        refused,
        Err(GenerateError::NoSequence { n_seq: 2 })
    ));
    let mut other = session(2);
    assert!(matches!(
        other.fork(&a, &settings(0, 0)),
        Err(GenerateError::ForeignSequence)
    ));
    assert!(matches!(
        other.remove(b),
        Err(GenerateError::ForeignSequence)
    ));
    // One was dropped, one is taken out: both places are free, and nothing of them is left.
    first.remove(a).unwrap();
    let mut begun = [2, 0].map(|i| first.begin(PROMPTS[i], &settings(9, 0)).unwrap());
    let [c, d] = &mut begun;
    let texts = together(&mut first, &mut [c, d]);
    assert_eq!(texts, [2, 0].map(|i| alone(PROMPTS[i], &settings(9, 0))));
}

#[test]
fn pages_of_a_dropped_sequence_are_free() {
    let mut session = session(2);
    let mut long = session.begin(PROMPTS[0], &settings(0, 0)).unwrap();
    let mut other = session.begin(PROMPTS[1], &settings(0, 0)).unwrap();
    let free = session.state().free_pages();
    session.step(&mut [&mut long]).unwrap();
    assert!(session.state().free_pages() < free);
    drop(long);
    session.step(&mut [&mut other]).unwrap();
    assert_eq!(session.state().free_pages(), free - 1);
}

#[test]
fn several_positions_give_the_tokens_that_one_by_one_gives() {
    let mut session = session(2);
    let mut greedy = settings(0, 0);
    greedy.sampler.temperature = 0.0;
    let limits = Limits {
        n_ctx: 256,
        n_seq: 1,
        n_outputs: 8,
        ..Limits::default()
    };
    let mut one_by_one = session.begin(PROMPTS[2], &greedy).unwrap();
    let mut chosen = Vec::new();
    while chosen.len() < 6 {
        chosen.extend(
            session
                .step(&mut [&mut one_by_one])
                .unwrap()
                .iter()
                .map(|e| e.token),
        );
    }
    let mut session = model().session(limits).unwrap();
    let mut checked = session.add(&greedy).unwrap();
    let mut tokens = model().encode(PROMPTS[2], false).unwrap();
    let n_prompt = tokens.len();
    // A guess that is right but for its last token.
    tokens.extend_from_slice(&chosen[..4]);
    tokens.push(chosen[4] + 1);
    checked.push(&tokens, 6);
    let events = session.step(&mut [&mut checked]).unwrap();
    let found: Vec<_> = events.iter().map(|event| event.token).collect();
    assert_eq!(found[..5], chosen[..5]);
    let positions: Vec<_> = events.iter().map(|event| event.position).collect();
    assert_eq!(positions, (n_prompt..n_prompt + 6).collect::<Vec<_>>());
    assert!(
        checked.queue().is_empty(),
        "what is read next is the caller's decision"
    );
    session.truncate(&mut checked, n_prompt + 4).unwrap();
    checked.push(&[chosen[4]], 1);
    assert_eq!(
        session.step(&mut [&mut checked]).unwrap()[0].token,
        chosen[5]
    );
}

#[test]
fn texts_that_fill_the_context_end_one_by_one() {
    let limits = Limits {
        n_ctx: 192,
        n_seq: 2,
        ..Limits::default()
    };
    let mut session = model().session(limits).unwrap();
    let endless = Settings {
        n_predict: None,
        ignore_eos: true,
        ..Settings::default()
    };
    let mut a = session.begin(PROMPTS[0], &endless).unwrap();
    let mut b = session.begin(PROMPTS[1], &endless).unwrap();
    together(&mut session, &mut [&mut a, &mut b]);
    assert_eq!(
        [&a, &b].map(Sequence::ended),
        [Some(EndReason::ContextFull); 2]
    );
    let lens = [&a, &b].map(|sequence| sequence.tokens().len());
    assert!(
        lens.iter().all(|len| len.is_multiple_of(64)),
        "whole pages: {lens:?}"
    );
    assert!(lens.iter().sum::<usize>() >= 192, "{lens:?}");
}

#[test]
fn sessions_use_one_team_in_turn() {
    let team = Team::new(2, &Cores::detect()).unwrap();
    let expected = PROMPTS.map(|prompt| alone(prompt, &settings(2, 0)));
    let threads: Vec<_> = PROMPTS
        .into_iter()
        .map(|prompt| {
            let limits = Limits {
                n_ctx: 128,
                ..Limits::default()
            };
            let mut session = model().session_on(&team, limits).unwrap();
            std::thread::spawn(move || {
                let pieces = session.generate(prompt, settings(2, 0));
                pieces.map(Result::unwrap).collect::<String>()
            })
        })
        .collect();
    let texts: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(texts, expected);
}

#[test]
fn a_text_and_embeddings_share_a_team() {
    let team = Team::new(2, &Cores::detect()).unwrap();
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/embed/tiny-bert-f16.gguf"
    );
    let encoder = ModelSource::open(path, LoadMode::Read)
        .unwrap()
        .load(&team)
        .unwrap();
    let mut vectors = encoder.session_on(&team, Limits::default()).unwrap();
    let mut tale = model().session_on(&team, Limits::default()).unwrap();
    let mut pieces = tale.generate(PROMPTS[0], settings(5, 0));
    let mut text = pieces.next().unwrap().unwrap();
    let found = vectors.embed(&PROMPTS).unwrap();
    text.extend(pieces.map(Result::unwrap));
    assert_eq!(text, alone(PROMPTS[0], &settings(5, 0)));
    // The same vectors, whatever else is in a step and however the session was made.
    let limits = Limits::for_embedding(&encoder, 64, 64);
    let mut several = encoder.session_on(&team, limits).unwrap();
    assert_eq!(several.embed(&PROMPTS).unwrap(), found);
    let refused = encoder
        .session(Limits::default())
        .unwrap()
        .generate("a", settings(0, 0))
        .next();
    assert!(refused.unwrap().is_err(), "an encoder writes nothing");
}

#[test]
fn texts_end_as_they_were_asked_to() {
    let mut session = session(1);
    let ended = |session: &mut Session, settings: Settings| {
        let mut pieces = session.generate(PROMPTS[0], settings);
        let text: String = pieces.by_ref().map(Result::unwrap).collect();
        (text, pieces.ended().unwrap())
    };
    let (whole, why) = ended(&mut session, settings(0, 0));
    assert_eq!(why, EndReason::Length);
    let stop = &whole[10..14];
    let stopped = Settings {
        stops: vec![stop.to_owned()],
        ..settings(0, 0)
    };
    let (text, why) = ended(&mut session, stopped);
    assert_eq!(
        (text.as_str(), why),
        (&whole[..whole.find(stop).unwrap()], EndReason::EndOfText)
    );
    let endless = Settings {
        n_predict: None,
        ignore_eos: true,
        ..settings(0, 0)
    };
    assert_eq!(ended(&mut session, endless).1, EndReason::ContextFull);
    let nothing = Settings {
        n_predict: Some(0),
        ..settings(0, 0)
    };
    assert_eq!(
        ended(&mut session, nothing),
        (String::new(), EndReason::Length)
    );
    session.stop().stop();
    let mut pieces = session.generate(PROMPTS[0], settings(0, 0));
    let error = pieces.next().unwrap().unwrap_err();
    assert!(matches!(error, GenerateError::Step(error) if error.is_cancelled()));
    assert!(pieces.next().is_none());
}

/// Chooses as asked, and then fails.
#[derive(Debug)]
struct Failing(u32);

impl Choose for Failing {
    fn choose(&mut self, _: &[f32], _: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        match self.0 {
            0 => Err(ChoiceError::new(std::io::Error::other("no more"))),
            1 => panic!("worse"),
            n => {
                self.0 = if n == 2 { 0 } else { 1 };
                Ok(100)
            }
        }
    }
}

#[test]
fn a_sampler_that_fails_ends_its_own_text_alone() {
    let mut session = session(3);
    let settings = settings(3, 0);
    let mut good = session.begin(PROMPTS[0], &settings).unwrap();
    let mut failing = [2, 3].map(|n| {
        let mut sequence = session.add_with(&settings, Box::new(Failing(n))).unwrap();
        sequence.push(&[70, 71], 1);
        sequence
    });
    let [first, second] = &mut failing;
    let texts = together(&mut session, &mut [&mut good, first, second]);
    assert_eq!(texts[0], alone(PROMPTS[0], &settings));
    for (sequence, why) in failing.iter_mut().zip(["no more", "the sampler panicked"]) {
        assert_eq!(sequence.ended(), Some(EndReason::Failed));
        assert_eq!(sequence.failure().unwrap().to_string(), why);
        assert_eq!(sequence.tokens(), [70, 71, 100]);
    }
}

#[test]
fn a_share_is_the_most_that_a_text_reads() {
    let mut session = session(2);
    let settings = settings(4, 0);
    let mut both = [PROMPTS[1], PROMPTS[2]].map(|prompt| session.begin(prompt, &settings).unwrap());
    let queued = both.each_ref().map(|sequence| sequence.queue().len());
    let hooks = StepHooks {
        shares: Some(&[3, 0]),
        ..StepHooks::default()
    };
    let [first, second] = &mut both;
    let (events, entered) = session.step_with(&mut [first, second], &hooks).unwrap();
    assert!(events.is_empty());
    assert_eq!(entered.n_tokens, 3);
    assert_eq!(
        both.each_ref().map(|sequence| sequence.queue().len()),
        [queued[0] - 3, queued[1]]
    );
    let [first, second] = &mut both;
    let texts = together(&mut session, &mut [first, second]);
    assert_eq!(
        texts,
        [PROMPTS[1], PROMPTS[2]].map(|prompt| alone(prompt, &settings))
    );
}
