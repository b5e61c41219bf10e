//! Speculation through C: texts, logits and hashes are equal with and without.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "C programs in Rust's words, under one promise"
)]

use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use sluice_capi::context::{
    Context, ContextParams, sluice_context_free, sluice_context_new, sluice_context_params_default,
    sluice_context_reset, sluice_eval,
};
use sluice_capi::generate::{
    GenerateEnd, GenerateResult, sluice_generate, sluice_generate_params_default,
};
use sluice_capi::model::{ModelHandle, sluice_model_free, sluice_model_open};
use sluice_capi::status::Status;
use sluice_tests::hosted::TALE;
use sluice_tests::measured;
use std::ffi::CString;

fn fixture(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
    format!("{folder}/{name}.gguf")
}

fn open(path: &str) -> *mut ModelHandle {
    let (path, mut model) = (CString::new(path).expect("no zero"), ptr::null_mut());
    // SAFETY: a zero-terminated text and a place for a handle.
    let opened = unsafe { sluice_model_open(path.as_ptr(), ptr::null(), &raw mut model) };
    assert_eq!(opened, Status::SLUICE_OK);
    model
}

fn context(model: *const ModelHandle, params: &ContextParams) -> *mut Context {
    let mut context = ptr::null_mut();
    // SAFETY: a handle, a struct that begins with its size, a place for a handle.
    let made = unsafe { sluice_context_new(model, params, &raw mut context) };
    assert_eq!(made, Status::SLUICE_OK);
    context
}

/// A context of 256 tokens on two threads.
fn params(speculation: &'static CStr) -> ContextParams {
    ContextParams {
        n_ctx: 256,
        n_threads: 2,
        speculation: speculation.as_ptr(),
        ..sluice_context_params_default()
    }
}

/// How a text is generated.
#[derive(Clone, Copy, Debug)]
struct Asked {
    prompt: &'static str,
    seed: u64,
    temperature: f32,
    n_predict: i32,
    grammar: Option<&'static CStr>,
    /// The callback stops after this many tokens.
    n_wanted: usize,
}

const PLAIN: Asked = Asked {
    prompt: "a b a b a b",
    seed: 1,
    temperature: 0.0,
    n_predict: 96,
    grammar: None,
    n_wanted: usize::MAX,
};

/// The result of a generation.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    status: Status,
    tokens: Vec<u32>,
    text: Vec<u8>,
    hash: u64,
    n_generated: u32,
    ended: GenerateEnd,
}

/// The state of a callback.
struct Kept {
    tokens: Vec<u32>,
    text: Vec<u8>,
    n_wanted: usize,
}

unsafe extern "C" fn keep(token: u32, piece: *const c_char, len: usize, kept: *mut c_void) -> bool {
    // SAFETY: what `tell` passes, and a piece of its length.
    let (kept, piece) = unsafe {
        let piece = core::slice::from_raw_parts(piece.cast::<u8>(), len);
        (&mut *kept.cast::<Kept>(), piece)
    };
    kept.tokens.push(token);
    kept.text.extend_from_slice(piece);
    kept.tokens.len() < kept.n_wanted
}

/// A text, and the numbers of draft tokens verified and accepted.
fn tell(context: *const Context, asked: &Asked) -> (Told, (u32, u32)) {
    let mut params = sluice_generate_params_default();
    (params.seed, params.temperature) = (asked.seed, asked.temperature);
    params.n_predict = asked.n_predict;
    params.grammar = asked.grammar.map_or(ptr::null(), CStr::as_ptr);
    let mut kept = Kept {
        tokens: Vec::new(),
        text: Vec::new(),
        n_wanted: asked.n_wanted,
    };
    let mut result = GenerateResult {
        struct_bytes: size_of::<GenerateResult>(),
        logits_hash: 0,
        prompt_ns: 0,
        eval_ns: 0,
        n_prompt: 0,
        n_reused: 0,
        n_generated: 0,
        ended: GenerateEnd::SLUICE_ENDED_BY_MODEL,
        n_draft: u32::MAX,
        n_accepted: u32::MAX,
    };
    let (text, len) = (asked.prompt.as_ptr().cast(), asked.prompt.len());
    // SAFETY: a handle, a text of its length, structs that begin with their sizes, and the argument
    // of `keep`.
    let status = unsafe {
        sluice_generate(
            context,
            text,
            len,
            &raw const params,
            Some(keep),
            (&raw mut kept).cast(),
            &raw mut result,
        )
    };
    let told = Told {
        status,
        tokens: kept.tokens,
        text: kept.text,
        hash: result.logits_hash,
        n_generated: result.n_generated,
        ended: result.ended,
    };
    (told, (result.n_draft, result.n_accepted))
}

/// The bits of the logits after a text.
fn logits(context: *const Context, tokens: &[u32]) -> Vec<u32> {
    let (mut found, mut n) = (vec![0f32; 1 << 18], 0);
    // SAFETY: a handle, tokens of their number, room as stated.
    let done = unsafe {
        let (room, at) = (found.len(), found.as_mut_ptr());
        sluice_eval(context, tokens.as_ptr(), tokens.len(), at, room, &raw mut n)
    };
    assert_eq!(done, Status::SLUICE_OK);
    found[..n].iter().map(|logit| logit.to_bits()).collect()
}

fn reset(context: *const Context) {
    // SAFETY: a handle.
    assert_eq!(unsafe { sluice_context_reset(context) }, Status::SLUICE_OK);
}

/// Generates texts one after the other in two contexts, the second of which speculates; returns what it verified and
/// accepted.
fn compare(plain: *const Context, speculating: *const Context, place: &str) -> (u32, u32) {
    let asked = [
        PLAIN,
        Asked {
            temperature: 0.8,
            seed: 2,
            ..PLAIN
        },
        Asked {
            prompt: "Once upon a time",
            temperature: 0.3,
            seed: 3,
            ..PLAIN
        },
        Asked {
            grammar: Some(c"root ::= (\"one and two, \" | \"three and four, \")+"),
            n_predict: 24,
            ..PLAIN
        },
        Asked {
            n_predict: 1,
            ..PLAIN
        },
        Asked {
            n_predict: -1,
            ..PLAIN
        },
    ];
    let (mut n_draft, mut n_accepted) = (0, 0);
    for asked in asked {
        let (expected, none) = tell(plain, &asked);
        assert_eq!(none, (0, 0), "{place}");
        let (found, counted) = tell(speculating, &asked);
        assert_eq!(found, expected, "{place}, {asked:?}");
        assert!(counted.0 >= counted.1, "{counted:?}");
        n_draft += counted.0;
        n_accepted += counted.1;
        let tokens = &expected.tokens[..expected.tokens.len().min(20)];
        assert_eq!(
            logits(speculating, tokens),
            logits(plain, tokens),
            "{place}"
        );
    }
    (n_draft, n_accepted)
}

#[test]
fn texts_are_those_without_drafts() {
    let models = [
        (TALE.to_owned(), None),
        (fixture("llama-Q4_K"), Some("llama-Q2_K")),
        (fixture("granitehybrid"), None),
        (fixture("nemotron_h"), None),
        (fixture("qwen35-mtp"), None),
    ];
    for (path, other) in models {
        let model = open(&path);
        let other = other.map(|name| open(&fixture(name)));
        let plain = context(model, &params(c"none"));
        let of = |n_draft: u32, draft_model: *const ModelHandle| ContextParams {
            n_draft,
            draft_model,
            ..params(c"auto")
        };
        let itself = ContextParams {
            draft_p_min: 0.2,
            n_draft_min: 2,
            ..of(0, model)
        };
        let mut all = vec![of(0, ptr::null()), of(16, ptr::null()), itself];
        all.extend(other.map(|other| of(4, other)));
        let mut sum = (0, 0);
        for params in &all {
            let speculating = context(model, params);
            let place = format!("{path}, {params:?}");
            let (n, right) = compare(plain, speculating, &place);
            sum = (sum.0 + n, sum.1 + right);
            reset(plain);
            // SAFETY: a handle that is not used afterwards.
            unsafe { sluice_context_free(speculating) };
        }
        measured(&format!("{path}: {} verified, {} accepted", sum.0, sum.1));
        assert!(sum.1 > 0, "{path}");
        // SAFETY: handles that are not used afterwards.
        unsafe {
            sluice_context_free(plain);
            sluice_model_free(model);
            other.into_iter().for_each(|other| sluice_model_free(other));
        }
    }
}

/// A callback that stops within drafted tokens ends the text there, and another generation continues from
/// it.
#[test]
fn a_callback_cancels_within_draft() {
    let model = open(&fixture("granitehybrid"));
    let plain = context(model, &params(c"none"));
    // The model of the context drafts for itself, so nearly all tokens are accepted.
    let draft = ContextParams {
        draft_model: model,
        ..params(c"auto")
    };
    let speculating = context(model, &draft);
    // SAFETY: a handle that is not used afterwards; contexts keep the model.
    unsafe { sluice_model_free(model) };
    let (mut n_accepted, whole) = (0, tell(plain, &PLAIN).0);
    for n_wanted in 1..40 {
        let asked = Asked { n_wanted, ..PLAIN };
        let (found, counted) = tell(speculating, &asked);
        assert_eq!(found.status, Status::SLUICE_CANCELLED);
        assert_eq!(found.n_generated as usize, n_wanted);
        assert_eq!(found, tell(plain, &asked).0);
        assert_eq!(found.tokens, whole.tokens[..n_wanted]);
        n_accepted += counted.1;
        // Only the prompt's last token is read again, and nothing is drafted after it, as that could add two.
        let one = Asked {
            n_predict: 1,
            ..PLAIN
        };
        assert_eq!(tell(speculating, &one), tell(plain, &one));
        let tokens = &whole.tokens[..n_wanted];
        assert_eq!(logits(speculating, tokens), logits(plain, tokens));
    }
    assert!(n_accepted > 0);
    assert_eq!(tell(speculating, &PLAIN).0, whole);
    // SAFETY: handles that are not used afterwards.
    unsafe {
        sluice_context_free(plain);
        sluice_context_free(speculating);
    }
}
