//! The C interface as seen from C: the header matches the sources, and programs built by a C
//! compiler run with the shared and with the static library.
#![cfg(target_os = "linux")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "C programs in Rust's words, under one promise"
)]

mod programs;

use core::ptr;
use programs::{Linked, compile, run, scratch};
use sluice_capi::adapter::{
    AdapterHandle, sluice_adapter_free, sluice_adapter_load, sluice_context_set_adapters,
};
use sluice_capi::context::{
    Context, sluice_context_free, sluice_context_new, sluice_context_params_default,
    sluice_context_reset,
};
use sluice_capi::embed::{
    sluice_embed, sluice_embedder_free, sluice_embedder_new, sluice_embedder_params_default,
    sluice_embedder_set_adapters,
};
use sluice_capi::generate::{
    GenerateEnd, GenerateResult, sluice_generate, sluice_generate_params_default,
};
use sluice_capi::model::{sluice_model_free, sluice_model_open};
use sluice_capi::status::Status;
use sluice_tests::hosted::{Story, TALE, adapted_story, story};
use sluice_tests::metal::text_of;
use std::env;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

const HEADER: &str = "include/sluice.h";

/// `SLUICE_UPDATE_HEADER=1 cargo test -p sluice-capi` writes it.
#[test]
fn the_header_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("its settings");
    // The header's modules are found from there.
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = builder.with_src(folder.join("src/lib.rs"));
    let mut made = Vec::new();
    builder.generate().expect("a header").write(&mut made);
    let made = String::from_utf8(made).expect("a text");
    let path = folder.join(HEADER);
    if env::var_os("SLUICE_UPDATE_HEADER").is_some() {
        fs::write(&path, &made).expect("writable");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "{HEADER} is not what cbindgen makes of the sources: run \
         SLUICE_UPDATE_HEADER=1 cargo test -p sluice-capi --test c_api"
    );
}

#[test]
fn a_c_program_tells_the_story_of_a_hosted_run() {
    let expected = story(TALE.as_ref(), "Once upon a time", 24, 7);
    for linked in Linked::ALL {
        let program = compile(&example("hello.c"), linked);
        let told = run(&program, &[TALE, "Once upon a time", "24", "7"]);
        let text = String::from_utf8_lossy(&told.stdout);
        assert!(told.status.success(), "{linked:?}: {}", text_of(&told));
        assert_eq!(text, format!("{}\n", expected.text), "{linked:?}");
        let said = String::from_utf8_lossy(&told.stderr);
        assert!(said.contains(&expected.hash_line()), "{linked:?}: {said}");
        assert!(said.contains("24 generated"), "{linked:?}: {said}");
    }
}

/// A template, a schema and vectors through C.
#[test]
fn a_c_program_has_a_conversation() {
    for linked in Linked::ALL {
        let program = compile(&example("chat.c"), linked);
        let told = run(&program, &[TALE, "Name an animal and its age.", "chatml"]);
        let text = String::from_utf8_lossy(&told.stdout);
        assert!(told.status.success(), "{linked:?}: {}", text_of(&told));
        let (answer, similarity) = text.split_once("\nsimilarity ").expect("two parts");
        let answer: serde_json::Value = serde_json::from_str(answer).expect("JSON");
        assert!(answer["name"].is_string(), "{answer}");
        assert!(
            answer["age"].as_u64().is_some_and(|age| age < 100),
            "{answer}"
        );
        assert!(similarity.starts_with("0."), "{similarity}");
    }
}

/// Adapters through C: none, one, and several with factors.
#[test]
fn a_c_program_tells_the_story_with_adapters() {
    let [one, two] = [adapter("tale/one"), adapter("tale/two")];
    let cases = [
        vec![],
        vec![(&*one, 1.0)],
        vec![(&*one, 0.5), (&*two, 1.25)],
    ];
    let stories = cases.each_ref().map(|adapters| adapted(adapters));
    let hashes = stories.each_ref().map(|story| story.logits_hash);
    assert_ne!(hashes[0], hashes[1]);
    assert_ne!(hashes[1], hashes[2]);
    for linked in Linked::ALL {
        let program = compile(&example("adapters.c"), linked);
        for (expected, adapters) in stories.iter().zip(&cases) {
            let given = adapters.iter().map(|&(path, scale)| match scale {
                1.0 => path.to_owned(),
                scale => format!("{path}:{scale}"),
            });
            let given: Vec<_> = given.collect();
            let mut arguments = vec![TALE, ONCE, "24", "7"];
            arguments.extend(given.iter().map(String::as_str));
            let told = run(&program, &arguments);
            assert!(told.status.success(), "{linked:?}: {}", text_of(&told));
            let text = String::from_utf8_lossy(&told.stdout);
            let said = String::from_utf8_lossy(&told.stderr);
            assert_eq!(text, format!("{}\n", expected.text), "{linked:?} {given:?}");
            assert!(said.contains(&expected.hash_line()), "{linked:?}: {said}");
        }
    }
}

/// 24 tokens after [`ONCE`], generated with adapters by the crate.
fn adapted(adapters: &[(&str, f32)]) -> Story {
    let adapters = adapters.iter();
    let adapters = adapters.map(|&(path, scale)| (Path::new(path), scale));
    let adapters: Vec<_> = adapters.collect();
    adapted_story(TALE.as_ref(), &adapters, ONCE, 24, 7)
}

const ONCE: &str = "Once upon a time";

/// What a context has read with other adapters does not affect what follows, and without adapters it is the
/// model alone.
#[test]
fn adapters_change_between_texts() {
    let [one, two] = [adapter("tale/one"), adapter("tale/two")];
    let hash = |adapters: &[(&str, f32)]| adapted(adapters).logits_hash;
    let (mut model, mut context) = (ptr::null_mut(), ptr::null_mut());
    let [mut first, mut second] = [ptr::null_mut(); 2];
    let text = |path: &str| CString::new(path).expect("no zero");
    let mut params = sluice_context_params_default();
    (params.n_ctx, params.adapter_rank) = (512, 64);
    // SAFETY: zero-terminated texts, structs that begin with their sizes, and handles from here.
    unsafe {
        let tale = text(TALE);
        let made = [
            sluice_model_open(tale.as_ptr(), ptr::null(), &raw mut model),
            sluice_context_new(model, &raw const params, &raw mut context),
            sluice_adapter_load(model, text(&one).as_ptr(), ptr::null(), &raw mut first),
            sluice_adapter_load(model, text(&two).as_ptr(), ptr::null(), &raw mut second),
        ];
        sluice_model_free(model);
        assert_eq!(made, [Status::SLUICE_OK; 4]);
        let set = |adapters: &[*const AdapterHandle], scales: &[f32]| {
            let (n, adapters, scales) = (adapters.len(), adapters.as_ptr(), scales.as_ptr());
            let status = sluice_context_set_adapters(context, adapters, scales, n);
            assert_eq!(status, Status::SLUICE_OK);
        };
        let (first, second) = (first, second);
        assert_eq!(hash_of(context, ONCE), hash(&[]));
        set(&[first], &[0.5]);
        assert_eq!(hash_of(context, ONCE), hash(&[(&one, 0.5)]));
        set(&[second, first], &[1.0, -0.5]);
        sluice_adapter_free(first);
        sluice_adapter_free(second);
        let both = hash(&[(&two, 1.0), (&one, -0.5)]);
        assert_eq!(hash_of(context, ONCE), both);
        assert_eq!(hash_of(context, ONCE), both);
        set(&[], &[]);
        assert_eq!(hash_of(context, ONCE), hash(&[]));
        sluice_context_free(context);
    }
}

/// C gets the same results as the crate.
#[test]
fn vectors_are_those_of_the_crate() {
    let model =
        sluice::Model::open(Path::new(env!("CARGO_MANIFEST_DIR")).join(BERT)).expect("the model");
    let texts = ["a boat", "the sea was calm"];
    let limits = sluice::Limits::for_embedding(&model, 512, 512);
    let mut session = model.session(limits).expect("memory");
    let expected = session.embed(&texts).expect("vectors").concat();

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(BERT);
    let path = CString::new(path.to_str().expect("UTF-8")).expect("no zero");
    let texts = texts.map(|text| CString::new(text).expect("no zero"));
    let texts = texts.each_ref().map(|text| text.as_ptr());
    let (mut model, mut embedder, mut n) = (ptr::null_mut(), ptr::null_mut(), 0);
    let mut found = vec![0f32; expected.len()];
    // SAFETY: zero-terminated texts, handles that the library created, and room as stated.
    unsafe {
        let opened = sluice_model_open(path.as_ptr(), ptr::null(), &raw mut model);
        assert_eq!(opened, Status::SLUICE_OK);
        let made = sluice_embedder_new(model, ptr::null(), &raw mut embedder);
        assert_eq!(made, Status::SLUICE_OK);
        let (room, at) = (found.len(), found.as_mut_ptr());
        let done = sluice_embed(embedder, texts.as_ptr(), 2, at, room, &raw mut n);
        assert_eq!(done, Status::SLUICE_OK);
        sluice_embedder_free(embedder);
        sluice_model_free(model);
    }
    assert_eq!(n, expected.len());
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&found), bits(&expected));
}

/// An embedder with an adapter gives the same vectors as a session with it.
#[test]
fn vectors_with_adapters_are_those_of_the_crate() {
    let [path, lora] = [adapter("llama/base.gguf"), adapter("llama/one")];
    let model = sluice::Model::open(&path).expect("the model");
    let file =
        sluice_hf::adapter::read(Path::new(&lora), None, Some(model.file())).expect("an adapter");
    let loaded = sluice::adapter::LoadedAdapter::load(
        model.config(),
        &file,
        sluice::adapter::Precision::Exact,
    );
    let limits = sluice::Limits {
        adapter_rank: 64,
        ..sluice::Limits::for_embedding(&model, 512, 512)
    };
    let mut session = model.session(limits).expect("memory");
    let mut embed = || session.embed(&["a boat"]).expect("vectors").concat();
    let alone = embed();
    session.set_adapter(Some(loaded.expect("of the model").into()));
    let expected = session.embed(&["a boat"]).expect("vectors").concat();
    assert_ne!(alone, expected);

    let [path, lora] = [path, lora].map(|path| CString::new(path).expect("no zero"));
    let text = c"a boat".as_ptr();
    let mut params = sluice_embedder_params_default();
    (params.n_ctx, params.adapter_rank) = (512, 64);
    let (mut model, mut embedder, mut one, mut n) =
        (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0);
    let mut found = vec![0f32; expected.len()];
    // SAFETY: zero-terminated texts, handles that the library created, and room as stated.
    unsafe {
        let made = [
            sluice_model_open(path.as_ptr(), ptr::null(), &raw mut model),
            sluice_embedder_new(model, &raw const params, &raw mut embedder),
            sluice_adapter_load(model, lora.as_ptr(), ptr::null(), &raw mut one),
        ];
        assert_eq!(made, [Status::SLUICE_OK; 3]);
        let adapters = [one.cast_const()];
        let mut vector = |n_adapters: usize| {
            let adapters = adapters.as_ptr();
            let set = sluice_embedder_set_adapters(embedder, adapters, ptr::null(), n_adapters);
            assert_eq!(set, Status::SLUICE_OK);
            let (room, at) = (found.len(), found.as_mut_ptr());
            let done = sluice_embed(embedder, &raw const text, 1, at, room, &raw mut n);
            assert_eq!(done, Status::SLUICE_OK);
            found.clone()
        };
        assert_eq!(vector(1), expected);
        assert_eq!(vector(0), alone);
        sluice_adapter_free(one);
        sluice_embedder_free(embedder);
        sluice_model_free(model);
    }
}

/// Two contexts of one model are independent, and a reset one starts over.
#[test]
fn layers_of_every_kind_tell_the_hosted_story() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
    for name in ["lfm2", "lfm2-Q4_K_M", "gpt-oss-MXFP4_MOE"] {
        let path = format!("{folder}/{name}.gguf");
        let hash = |prompt: &str| story(path.as_ref(), prompt, 24, 7).logits_hash;
        let (once, little) = (hash("Once upon a time"), hash("The little dog"));
        assert_ne!(once, little);
        let path = CString::new(path.as_str()).expect("no zero");
        let (mut model, mut a, mut b) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: a zero-terminated text, places for handles, and a model created here.
        let made = unsafe {
            [
                sluice_model_open(path.as_ptr(), ptr::null(), &raw mut model),
                sluice_context_new(model, ptr::null(), &raw mut a),
                sluice_context_new(model, ptr::null(), &raw mut b),
            ]
        };
        assert_eq!(made, [Status::SLUICE_OK; 3]);
        assert_eq!(hash_of(a, "Once upon a time"), once, "{name}");
        assert_eq!(hash_of(b, "The little dog"), little, "{name}");
        // SAFETY: a handle from above.
        let reset = unsafe { sluice_context_reset(a) };
        assert_eq!(reset, Status::SLUICE_OK);
        assert_eq!(hash_of(a, "The little dog"), little, "{name}");
        // What a context has already read does not change what follows.
        assert_eq!(hash_of(b, "The little dog"), little, "{name}");
        assert_eq!(hash_of(b, "Once upon a time"), once, "{name}");
        // SAFETY: handles from above, not used afterwards.
        unsafe {
            sluice_context_free(a);
            sluice_context_free(b);
            sluice_model_free(model);
        }
    }
}

/// The hash over the logits of 24 tokens after a prompt.
fn hash_of(context: *mut Context, prompt: &str) -> u64 {
    let mut params = sluice_generate_params_default();
    (params.seed, params.n_predict) = (7, 24);
    let mut result = GenerateResult {
        struct_bytes: size_of::<GenerateResult>(),
        logits_hash: 0,
        prompt_ns: 0,
        eval_ns: 0,
        n_prompt: 0,
        n_reused: 0,
        n_generated: 0,
        ended: GenerateEnd::SLUICE_ENDED_BY_MODEL,
        n_draft: 0,
        n_accepted: 0,
    };
    let (text, len) = (prompt.as_ptr().cast(), prompt.len());
    let (none, out) = (ptr::null_mut(), &raw mut result);
    // SAFETY: a handle, a text of its length, and structs that begin with their sizes.
    let status = unsafe { sluice_generate(context, text, len, &raw const params, None, none, out) };
    assert_eq!(status, Status::SLUICE_OK);
    result.logits_hash
}

/// An encoder, with its folder.
const BERT: &str = "../../tests/fixtures/embed/tiny-bert-f16.gguf";

#[test]
fn a_c_program_is_told_what_failed() {
    let program = compile(&example("hello.c"), Linked::Shared);
    let failed = run(&program, &["/nonexistent.gguf", "x"]);
    assert_eq!(failed.status.code(), Some(1));
    let said = String::from_utf8_lossy(&failed.stderr);
    let expected = "cannot open the model: SLUICE_INVALID_MODEL: cannot open /nonexistent.gguf: \
                    No such file or directory (os error 2)\n";
    assert_eq!(said, expected);
}

/// Every possible error has its status and a message that names what and where.
#[test]
fn errors_have_a_status_and_a_message() {
    let cut = scratch("cut.gguf");
    let tale = fs::read(TALE).expect("the model");
    fs::write(&cut, &tale[..tale.len() / 2]).expect("writable");
    let cut = cut.to_str().expect("the checkout's path is UTF-8");
    let folder = env!("CARGO_MANIFEST_DIR");
    for linked in Linked::ALL {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors.c");
        let [good, foreign] = [adapter("tale/one"), adapter("llama/one")];
        let other = adapter("llama/base.gguf");
        let arguments = [TALE, cut, folder, &good, &foreign, &other];
        let output = run(&compile(&source, linked), &arguments);
        assert!(output.status.success(), "{linked:?}: {}", text_of(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        let expected = expected_errors(cut, folder);
        for (line, (start, part)) in text.lines().zip(&expected) {
            assert!(line.starts_with(start), "{linked:?}: '{start}' in '{line}'");
            assert!(line.contains(part), "{linked:?}: '{part}' in '{line}'");
        }
        assert_eq!(text.lines().count(), expected.len(), "{linked:?}: {text}");
    }
}

/// The beginning of each line, and other text in it.
#[expect(clippy::too_many_lines, reason = "a line a case")]
fn expected_errors<'e>(cut: &'e str, folder: &'e str) -> Vec<(&'e str, &'e str)> {
    vec![
        ("null path: SLUICE_NULL_POINTER: ", "path is null"),
        (
            "null out: SLUICE_NULL_POINTER: ",
            "the pointer to the handle is null",
        ),
        (
            "no such file: SLUICE_INVALID_MODEL: ",
            "cannot open /nonexistent/model.gguf: No such",
        ),
        (
            "path that is not UTF-8: SLUICE_INVALID_UTF8: ",
            "path: invalid utf-8",
        ),
        ("cut file: SLUICE_INVALID_MODEL: ", cut),
        ("folder: SLUICE_INVALID_MODEL: ", folder),
        ("null bytes: SLUICE_NULL_POINTER: ", "bytes is null"),
        (
            "no model in memory: SLUICE_INVALID_MODEL: ",
            "the model in memory: ",
        ),
        (
            "threads: SLUICE_INVALID_ARGUMENT: ",
            "n_threads is 1000, more than the maximum of 256",
        ),
        (
            "foreign struct: SLUICE_INVALID_ARGUMENT: ",
            "sluice_model_params.struct_bytes is 4096",
        ),
        (
            "activation: SLUICE_INVALID_ARGUMENT: ",
            "activation is 'gelu', expected relu",
        ),
        ("another activation: SLUICE_OK: ", ""),
        ("good model: SLUICE_OK: ", ""),
        (
            "small buffer: SLUICE_BUFFER_TOO_SMALL: ",
            "tokens has room for 2, but 5 are needed",
        ),
        ("tokens needed: 5", ""),
        ("not UTF-8: SLUICE_INVALID_UTF8: ", "text: incomplete utf-8"),
        ("unknown token: SLUICE_INVALID_ARGUMENT: ", "1073741824"),
        ("null model: SLUICE_NULL_POINTER: ", "model is null"),
        ("info: SLUICE_OK: ", ""),
        ("vocabulary 4096, context 1024, layers 6", ""),
        (
            "isa: SLUICE_INVALID_ARGUMENT: ",
            "unknown instruction set \"altivec\"",
        ),
        (
            "KV type: SLUICE_INVALID_ARGUMENT: ",
            "unknown KV type 'f17'",
        ),
        (
            "no predictor: SLUICE_INVALID_ARGUMENT: ",
            "tale-5.8m-Q4_K_M.sparse.gguf does not exist: make it with sluice sparsify",
        ),
        (
            "no calibration: SLUICE_INVALID_ARGUMENT: ",
            "none.sparse.json does not exist: make it with sluice sparsify",
        ),
        (
            "no neurons: SLUICE_INVALID_ARGUMENT: ",
            "use sluice pack --ffn neuron",
        ),
        ("null model: SLUICE_NULL_POINTER: ", "model is null"),
        (
            "speculation: SLUICE_INVALID_ARGUMENT: ",
            "unknown speculation 'oracle': expected auto or none",
        ),
        (
            "draft for none: SLUICE_INVALID_ARGUMENT: ",
            "draft_model is given, but speculation is 'none'",
        ),
        (
            "long draft: SLUICE_INVALID_ARGUMENT: ",
            "n_draft is 17, more than the maximum of 16",
        ),
        (
            "short draft: SLUICE_INVALID_ARGUMENT: ",
            "n_draft_min is 17, more than the maximum of 16",
        ),
        (
            "least probability: SLUICE_INVALID_ARGUMENT: ",
            "draft_p_min is NaN, expected a number from 0 to 1",
        ),
        ("good context: SLUICE_OK: ", ""),
        ("null context: SLUICE_NULL_POINTER: ", "context is null"),
        ("null prompt: SLUICE_NULL_POINTER: ", "prompt is null"),
        (
            "temperature: SLUICE_INVALID_ARGUMENT: ",
            "temperature is out of range",
        ),
        (
            "long prompt: SLUICE_CONTEXT_FULL: ",
            "exceed the context of 24",
        ),
        (
            "callback cancels: SLUICE_CANCELLED: ",
            "cancelled by the callback after 3 generated",
        ),
        ("3 generated, ended 3", ""),
        ("context in use: SLUICE_BUSY: ", "in a callback"),
        (
            "callback uses the context: SLUICE_CANCELLED: ",
            "the callback after 1 generated",
        ),
        (
            "other thread cancels: SLUICE_CANCELLED: ",
            "cancelled by sluice_cancel after 1 ",
        ),
        ("1 generated, ended 3", ""),
        (
            "cancelled before: SLUICE_CANCELLED: ",
            "cancelled by sluice_cancel after 0 ",
        ),
        ("and goes on: SLUICE_OK: ", ""),
        ("ended 2", ""),
        (
            "unknown token: SLUICE_INVALID_ARGUMENT: ",
            "token 1073741824 is outside the vocabulary",
        ),
        (
            "no tokens: SLUICE_INVALID_ARGUMENT: ",
            "there are no tokens to decode",
        ),
        (
            "few logits: SLUICE_BUFFER_TOO_SMALL: ",
            "logits has room for 1, but 4096 are needed",
        ),
        ("logits needed: 4096", ""),
        (
            "no template: SLUICE_INVALID_ARGUMENT: ",
            "tokenizer.chat_template",
        ),
        (
            "message of nothing: SLUICE_NULL_POINTER: ",
            "content is null",
        ),
        (
            "small text: SLUICE_BUFFER_TOO_SMALL: ",
            "text has room for 1, but ",
        ),
        (
            "variables: SLUICE_INVALID_ARGUMENT: ",
            "variables is not valid",
        ),
        (
            "template refuses: SLUICE_INVALID_ARGUMENT: ",
            "template line 1 rejects the messages: no",
        ),
        ("grammar: SLUICE_INVALID_ARGUMENT: ", "nothing"),
        (
            "grammar and schema: SLUICE_INVALID_ARGUMENT: ",
            "cannot be combined",
        ),
        (
            "pooling: SLUICE_INVALID_ARGUMENT: ",
            "unknown pooling 'none': expected mean, cls or last",
        ),
        ("text of nothing: SLUICE_NULL_POINTER: ", "text is null"),
        ("numbers asked for: SLUICE_OK: ", ""),
        (
            "few numbers: SLUICE_BUFFER_TOO_SMALL: ",
            "vectors has room for 1, but 256 are needed",
        ),
        ("numbers needed: 256", ""),
        (
            "no adapter: SLUICE_INVALID_ADAPTER: ",
            "cannot read /nonexistent/adapter: No such",
        ),
        (
            "foreign adapter: SLUICE_INVALID_ADAPTER: ",
            "adapters/llama/one",
        ),
        (
            "adapter's type: SLUICE_INVALID_ARGUMENT: ",
            "unknown adapter type 'int4': expected auto, int8, bf16, f16 or f32",
        ),
        ("good adapter: SLUICE_OK: ", ""),
        ("adapter's info: SLUICE_OK: ", ""),
        ("rank 8, takes 16, warns ''", ""),
        (
            "no room: SLUICE_INVALID_ARGUMENT: ",
            "need an adapter_rank of 16, but sluice_context_params.adapter_rank was 0: ",
        ),
        (
            "adapter of nothing: SLUICE_NULL_POINTER: ",
            "adapters[1] is null",
        ),
        (
            "factor: SLUICE_INVALID_ARGUMENT: ",
            "scales[0] is inf, expected a finite number",
        ),
        (
            "less room than both take: SLUICE_INVALID_ARGUMENT: ",
            "need an adapter_rank of 32, but sluice_context_params.adapter_rank was 16: ",
        ),
        ("room for one: SLUICE_OK: ", ""),
        ("without its handle: SLUICE_OK: ", ""),
        ("null adapters: SLUICE_NULL_POINTER: ", "adapters is null"),
        ("none: SLUICE_OK: ", ""),
        (
            "adapter of another model: SLUICE_INVALID_ARGUMENT: ",
            "was loaded for a different model than ",
        ),
        (
            "draft of another vocabulary: SLUICE_INVALID_ARGUMENT: ",
            "draft_model: the draft model has ",
        ),
    ]
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(name)
}

/// A file of the fixtures of adapters.
fn adapter(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/adapters");
    format!("{folder}/{name}")
}
