//! Experts that stay on disk, through C: texts, logits and hashes equal the results of the model in
//! memory.
#![cfg(target_os = "linux")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "C programs in Rust's words, under one promise"
)]

use core::ffi::{CStr, c_char};
use core::ptr;
use sluice_capi::context::{
    Context, sluice_context_free, sluice_context_new, sluice_context_params_default,
};
use sluice_capi::experts::{ExpertCounts, sluice_model_get_expert_stats};
use sluice_capi::generate::{
    GenerateEnd, GenerateResult, sluice_generate, sluice_generate_params_default,
};
use sluice_capi::model::{
    ModelHandle, sluice_model_free, sluice_model_open, sluice_model_params_default,
};
use sluice_capi::model_params::ModelParams;
use sluice_capi::status::{Status, sluice_last_error};
use sluice_tests::hosted::TALE;
use std::ffi::CString;
use std::fs;
use std::path::PathBuf;

const MIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/models/gpt-oss.gguf"
);

fn open(path: &str, params: &ModelParams) -> Result<*mut ModelHandle, (Status, String)> {
    let (path, mut model) = (CString::new(path).expect("no zero"), ptr::null_mut());
    // SAFETY: a zero-terminated text, a struct that begins with its size, a place for a handle.
    let opened = unsafe { sluice_model_open(path.as_ptr(), params, &raw mut model) };
    match opened {
        Status::SLUICE_OK => Ok(model),
        status => Err((status, last_error())),
    }
}

fn last_error() -> String {
    // SAFETY: a text of this thread, read before another call.
    let text = unsafe { CStr::from_ptr(sluice_last_error()) };
    text.to_str().expect("UTF-8").to_owned()
}

fn context(model: *const ModelHandle) -> *mut Context {
    let mut params = sluice_context_params_default();
    (params.n_ctx, params.n_threads) = (256, 2);
    let mut context = ptr::null_mut();
    // SAFETY: a handle, a struct that begins with its size, a place for a handle.
    let made = unsafe { sluice_context_new(model, &raw const params, &raw mut context) };
    assert_eq!(made, Status::SLUICE_OK);
    context
}

/// The hash over the logits of a few tokens after a prompt.
fn hash(context: *mut Context, prompt: &str) -> Result<u64, Status> {
    let mut params = sluice_generate_params_default();
    (params.seed, params.n_predict) = (7, 16);
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
    let (text, len) = (prompt.as_ptr().cast::<c_char>(), prompt.len());
    let (none, out) = (ptr::null_mut(), &raw mut result);
    // SAFETY: a handle, a text of its length, and structs that begin with their sizes.
    let status = unsafe { sluice_generate(context, text, len, &raw const params, None, none, out) };
    match status {
        Status::SLUICE_OK => Ok(result.logits_hash),
        status => Err(status),
    }
}

fn stats(model: *const ModelHandle) -> ExpertCounts {
    // SAFETY: plain numbers.
    let mut stats: ExpertCounts = unsafe { core::mem::zeroed() };
    stats.struct_bytes = size_of::<ExpertCounts>();
    // SAFETY: a handle, and a struct that begins with its size.
    let status = unsafe { sluice_model_get_expert_stats(model, &raw mut stats) };
    assert_eq!(status, Status::SLUICE_OK);
    stats
}

/// Memory for half of the mixture's experts.
fn on_disk() -> ModelParams {
    let all = ModelParams {
        expert_cache_bytes: 1 << 30,
        ..sluice_model_params_default()
    };
    let model = open(MIXTURE, &all).expect("a model");
    let all = stats(model);
    free(model, ptr::null_mut());
    assert!(all.n_slots == all.n_experts, "{all:?}");
    ModelParams {
        expert_cache_bytes: all.slot_bytes * (all.n_experts / 2),
        expert_io: c"pread".as_ptr(),
        use_mmap: 0,
        ..sluice_model_params_default()
    }
}

fn free(model: *mut ModelHandle, context: *mut Context) {
    // SAFETY: handles, not used afterwards.
    unsafe {
        sluice_context_free(context);
        sluice_model_free(model);
    }
}

#[test]
fn texts_are_those_of_the_model_in_memory() {
    let model = open(MIXTURE, &sluice_model_params_default()).expect("a model");
    let resident = context(model);
    let expected = hash(resident, "Once upon a time").expect("a text");
    assert_eq!((stats(model).n_experts, stats(model).needed), (0, 0));
    free(model, resident);
    for policy in [c"aged", c"lru", c"lfu", c"fifo", c"heat"] {
        let params = ModelParams {
            expert_policy: policy.as_ptr(),
            no_expert_prefetch: u32::from(policy == c"lfu"),
            expert_check: 1,
            ..on_disk()
        };
        let model = open(MIXTURE, &params).expect("a model");
        let context = context(model);
        assert_eq!(
            hash(context, "Once upon a time"),
            Ok(expected),
            "{policy:?}"
        );
        let stats = stats(model);
        assert!(
            stats.n_slots > 0 && stats.n_slots < stats.n_experts,
            "{stats:?}"
        );
        assert!(stats.hits > 0 && stats.hits < stats.needed, "{stats:?}");
        assert!(stats.read_bytes > 0 && stats.evictions > 0, "{stats:?}");
        assert_eq!(stats.failures, 0);
        free(model, context);
    }
}

#[test]
fn what_cannot_be_is_named() {
    let with = |change: fn(&mut ModelParams)| {
        let mut params = on_disk();
        change(&mut params);
        open(MIXTURE, &params).map(drop).expect_err("refused")
    };
    let invalid = Status::SLUICE_INVALID_ARGUMENT;
    for (found, said) in [
        (
            open(TALE, &on_disk()).map(drop).expect_err("dense"),
            "no experts",
        ),
        (
            with(|all| all.expert_cache_bytes = 1),
            "cannot hold a single expert",
        ),
        (
            with(|all| all.expert_io = c"tape".as_ptr()),
            "expert_io is 'tape'",
        ),
        (
            with(|all| all.expert_policy = c"best".as_ptr()),
            "expert_policy is 'best'",
        ),
        (
            with(|all| all.expert_policy = c"static".as_ptr()),
            "expert_profile",
        ),
        (
            with(|all| all.expert_profile = c"/nowhere".as_ptr()),
            "expert_profile",
        ),
        (with(|all| all.expert_check = 2), "expert_check is 2"),
    ] {
        assert_eq!(found.0, invalid, "{}", found.1);
        assert!(found.1.contains(said), "{said}: {}", found.1);
    }
}

/// A program that was compiled before experts could stay on disk.
#[test]
fn a_shorter_struct_has_all_in_memory() {
    let mut params = on_disk();
    params.struct_bytes = 16;
    let model = open(MIXTURE, &params).expect("a model");
    assert_eq!(stats(model).n_experts, 0);
    free(model, ptr::null_mut());
}

#[test]
fn an_expert_that_does_not_come_ends_a_call_and_not_the_context() {
    let path: PathBuf = std::env::temp_dir().join(format!("sluice-c-{}.gguf", std::process::id()));
    let bytes = fs::read(MIXTURE).expect("the model");
    fs::write(&path, &bytes).expect("room");
    let model = open(path.to_str().expect("UTF-8"), &on_disk()).expect("a model");
    let context = context(model);
    let expected = hash(context, "Once upon a time").expect("a text");
    // The tensors are unavailable for a while.
    let file = fs::File::options()
        .write(true)
        .open(&path)
        .expect("the copy");
    file.set_len(bytes.len() as u64 / 8).expect("shorter");
    let ended = hash(context, "A very different text, the second one");
    assert_eq!(ended, Err(Status::SLUICE_EXPERT_FAILED));
    assert!(last_error().contains("expert "), "{}", last_error());
    assert!(stats(model).failures > 0);
    fs::write(&path, &bytes).expect("room");
    assert_eq!(hash(context, "Once upon a time"), Ok(expected));
    free(model, context);
    fs::remove_file(path).expect("the copy");
}
