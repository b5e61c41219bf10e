//! The engine in a C program without a C library: the header matches the sources, and the program
//! tells the same story as a hosted run.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use core::ffi::{CStr, c_char, c_void};
use core::{ptr, slice};
use sluice_core_capi::{self as capi, Core, Error, Params, Status};
use sluice_tests::hosted::{TALE, story};
use sluice_tests::metal::{core_library, text_of};
use sluice_tests::run::Aligned;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const HEADER: &str = "include/sluice_core.h";

/// `SLUICE_UPDATE_HEADER=1 cargo test -p sluice-core-capi` writes it.
#[test]
fn the_header_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("its settings");
    let builder = cbindgen::Builder::new().with_config(config);
    let mut made = Vec::new();
    let bindings = builder.with_src(folder.join("src/lib.rs")).generate();
    bindings.expect("a header").write(&mut made);
    let made = String::from_utf8(made).expect("a text");
    let path = folder.join(HEADER);
    if env::var_os("SLUICE_UPDATE_HEADER").is_some() {
        fs::write(&path, &made).expect("writable");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "{HEADER} is not what cbindgen makes of the sources: run \
         SLUICE_UPDATE_HEADER=1 cargo test -p sluice-core-capi --test c_api"
    );
}

#[test]
fn a_c_program_without_libc_tells_the_story_of_a_hosted_run() {
    let expected = story(TALE.as_ref(), "Once upon a time", 24, 7);
    let program = compile(Path::new(TALE));
    let output = Command::new("timeout").arg("60").arg(&program).output();
    let output = output.expect("timeout is part of coreutils");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", text_of(&output));
    let start = format!("{}\n{}\n", expected.text, expected.hash_line());
    assert!(text.starts_with(&start), "'{start}' does not begin: {text}");

    // The program stands alone: no library, no interpreter, no undefined symbols.
    let symbols = Command::new("nm").arg("-u").arg(&program).output();
    let symbols = symbols.expect("nm (Debian: binutils) runs");
    assert!(symbols.status.success(), "{}", text_of(&symbols));
    assert_eq!(text_of(&symbols).trim(), "");
    let headers = Command::new("readelf").arg("-lW").arg(&program).output();
    let headers = text_of(&headers.expect("readelf runs"));
    assert!(headers.contains("LOAD"), "{headers}");
    assert!(!headers.contains("INTERP"), "{headers}");
}

#[test]
fn a_cut_model_is_an_error_with_a_reason() {
    let cut = scratch("cut.gguf");
    let tale = fs::read(TALE).expect("the model");
    fs::write(&cut, &tale[..tale.len() / 3]).expect("writable");
    let program = compile(&cut);
    let output = Command::new("timeout").arg("60").arg(&program).output();
    let output = output.expect("timeout is part of coreutils");
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("ERROR: "), "{text}");
    assert!(text.contains("bytes"), "{text}");
}

/// Several cores through the host's own threads, cancellation, and every error.
#[test]
fn the_interface_holds() {
    let tale = fs::read(TALE).expect("the model");
    let expected = story(TALE.as_ref(), "Once upon a time", 24, 7);
    let mut params = capi::sluice_core_params_default();
    (params.n_ctx, params.seed, params.n_threads) = (64, 7, 2);
    assert_eq!(
        needed(&tale, &params).expect_err("nothing runs them"),
        (
            Status::SLUICE_CORE_INVALID_ARGUMENT,
            "n_threads is more than 1, but spread is null".to_owned()
        )
    );
    params.spread = Some(spread);
    let bytes = needed(&tale, &params).expect("a model");
    let mut memory = Aligned::new(bytes + 128);
    let memory = memory.bytes_mut();
    let skew = memory.as_ptr().align_offset(128);
    let short = init(&tale, &params, &mut memory[skew..][..bytes - 1]);
    let (status, message) = short.expect_err("a byte too few");
    assert_eq!(status, Status::SLUICE_CORE_OUT_OF_MEMORY, "{message}");
    let (status, message) = init(&tale, &params, &mut memory[skew + 1..]).expect_err("misaligned");
    assert_eq!(status, Status::SLUICE_CORE_BAD_POINTER, "{message}");
    let core = init(&tale, &params, &mut memory[skew..]).expect("an engine");

    assert_eq!(
        generate(core, "Once upon a time", 24, usize::MAX),
        Ok(expected.text.clone())
    );
    // SAFETY: created above, and used by nothing else.
    let hash = unsafe { capi::sluice_core_logits_hash(core) };
    assert_eq!(hash, expected.logits_hash);
    // SAFETY: as above.
    unsafe { capi::sluice_core_reset(core) };
    let (status, message) = generate(core, "Once upon a time", 24, 2).expect_err("cancelled");
    assert_eq!(status, Status::SLUICE_CORE_CANCELLED);
    assert_eq!(
        message,
        "cancelled by the callback after 2 generated tokens"
    );
    // SAFETY: as above.
    unsafe { capi::sluice_core_cancel(core) };
    let (status, message) = generate(core, " there", 1, 9).expect_err("cancelled");
    assert_eq!(
        (status, &*message),
        (Status::SLUICE_CORE_CANCELLED, "cancelled")
    );
    let (status, message) = generate(core, &"x ".repeat(90), 1, 9).expect_err("too long");
    assert_eq!(status, Status::SLUICE_CORE_CONTEXT_FULL, "{message}");
    let (status, message) = generate(core, &"x".repeat(5000), 1, 9).expect_err("too long");
    assert_eq!(status, Status::SLUICE_CORE_INVALID_ARGUMENT);
    assert_eq!(
        message,
        "the prompt has 5000 bytes, but prompt_bytes is 4096"
    );
    let (status, _) = generate(ptr::null_mut(), "x", 1, 9).expect_err("null");
    assert_eq!(status, Status::SLUICE_CORE_BAD_POINTER);
    // SAFETY: as above.
    unsafe { capi::sluice_core_reset(core) };
    assert_eq!(
        generate(core, "Once upon a time", 24, usize::MAX),
        Ok(expected.text)
    );
}

/// A longrope text that passes its original context, 16 tokens, is read again. Cancelled meanwhile, nothing of it is lost.
#[test]
fn a_text_that_is_read_again_survives_a_cancellation() {
    let model = fs::read(sluice_tests::fixture("models/llama-longrope.gguf")).expect("a fixture");
    let mut params = capi::sluice_core_params_default();
    (params.n_ctx, params.n_batch) = (64, 4);
    let told = |cancels: bool| {
        let mut memory = Aligned::new(needed(&model, &params).expect("a model") + 128);
        let memory = memory.bytes_mut();
        let skew = memory.as_ptr().align_offset(128);
        let core = init(&model, &params, &mut memory[skew..]).expect("an engine");
        generate(core, "abcdefgh", 0, usize::MAX).expect("a short text");
        if cancels {
            // SAFETY: created above, and used by nothing else.
            unsafe { capi::sluice_core_cancel(core) };
            let (status, _) = generate(core, "ijklmnopqrst", 0, 9).expect_err("cancelled");
            assert_eq!(status, Status::SLUICE_CORE_CANCELLED);
        }
        let text = generate(core, "ijklmnopqrst", 6, usize::MAX);
        // SAFETY: as above.
        (text, unsafe { capi::sluice_core_logits_hash(core) })
    };
    assert_eq!(told(true), told(false));
}

/// Functions that may be called during generation, from its callback and from another thread.
#[test]
fn a_running_generation_is_cancelled() {
    unsafe extern "C" fn cancel(_: *const c_char, _: usize, user_data: *mut c_void) -> bool {
        let core = user_data.expose_provenance();
        let other = std::thread::spawn(move || {
            let core = ptr::with_exposed_provenance::<Core>(core);
            let mut len = 0;
            // SAFETY: the engine lives as long as the test that uses it.
            unsafe { capi::sluice_core_isa(core, &raw mut len) };
            // SAFETY: as above.
            unsafe { capi::sluice_core_cancel(core) };
            len
        });
        assert!(other.join().expect("no panic") > 0);
        // SAFETY: as above.
        unsafe { capi::sluice_core_cancel(user_data.cast::<Core>()) };
        true
    }
    let tale = fs::read(TALE).expect("the model");
    let mut params = capi::sluice_core_params_default();
    (params.n_ctx, params.n_threads) = (64, 2);
    params.spread = Some(spread);
    let bytes = needed(&tale, &params).expect("a model");
    let mut memory = Aligned::new(bytes + 128);
    let memory = memory.bytes_mut();
    let skew = memory.as_ptr().align_offset(128);
    let core = init(&tale, &params, &mut memory[skew..]).expect("an engine");
    let (text, mut error) = ("Once upon a time", EMPTY);
    let (at, len, error_at) = (text.as_ptr().cast(), text.len(), &raw mut error);
    // SAFETY: everything is owned by this function.
    let status = unsafe {
        capi::sluice_core_generate(core, at, len, 24, Some(cancel), core.cast(), error_at)
    };
    let (status, message) = said(status, &error).expect_err("cancelled");
    assert_eq!(
        (status, &*message),
        (Status::SLUICE_CORE_CANCELLED, "cancelled")
    );
    // The cancellation has been handled.
    assert!(generate(core, " there", 2, 9).is_ok());
}

/// Recurrent states and sinks are cleared by a reset.
#[test]
fn layers_of_every_kind_tell_the_hosted_story_twice() {
    for name in ["lfm2", "gpt-oss-MXFP4_MOE"] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
        let path = format!("{folder}/{name}.gguf");
        let expected = story(path.as_ref(), "Once upon a time", 24, 7);
        let file = fs::read(&path).expect("a model");
        let mut model = Aligned::new(file.len());
        let model = model.bytes_mut();
        model.copy_from_slice(&file);
        let mut params = capi::sluice_core_params_default();
        (params.n_ctx, params.seed) = (64, 7);
        let bytes = needed(model, &params).expect("a model");
        let mut memory = Aligned::new(bytes + 128);
        let memory = memory.bytes_mut();
        let skew = memory.as_ptr().align_offset(128);
        let core = init(model, &params, &mut memory[skew..]).expect("an engine");
        for _ in 0..2 {
            let told = generate(core, "Once upon a time", 24, usize::MAX);
            assert_eq!(told.as_ref(), Ok(&expected.text), "{name}");
            // SAFETY: created above, and used by nothing else.
            let hash = unsafe { capi::sluice_core_logits_hash(core) };
            assert_eq!(hash, expected.logits_hash, "{name}");
            // SAFETY: as above.
            unsafe { capi::sluice_core_reset(core) };
        }
    }
}

/// The name of a control token is one token, or several of plain text.
#[test]
fn text_of_others_forges_no_control_tokens() {
    let tale = fs::read(TALE).expect("the model");
    let hashes = [1, 0].map(|parse_special| {
        let mut params = capi::sluice_core_params_default();
        (params.n_ctx, params.temperature) = (64, 0.0);
        params.parse_special = parse_special;
        let bytes = needed(&tale, &params).expect("a model");
        let mut memory = Aligned::new(bytes + 128);
        let memory = memory.bytes_mut();
        let skew = memory.as_ptr().align_offset(128);
        let core = init(&tale, &params, &mut memory[skew..]).expect("an engine");
        generate(core, "a<|endoftext|>Once", 2, usize::MAX).expect("a text");
        // SAFETY: created above, and used by nothing else.
        unsafe { capi::sluice_core_logits_hash(core) }
    });
    assert_ne!(hashes[0], hashes[1]);
}

#[test]
fn settings_out_of_range_are_named() {
    let tale = fs::read(TALE).expect("the model");
    let default = capi::sluice_core_params_default();
    let cases: [(Params, &str); 6] = [
        (
            Params {
                parse_special: 2,
                ..default
            },
            "parse_special is 2, expected 0 to 1",
        ),
        (
            Params {
                abi_version: 1,
                ..default
            },
            "abi_version is 1, expected 2 to 2",
        ),
        (
            Params {
                n_batch: 257,
                ..default
            },
            "n_batch is 257, expected 1 to 256",
        ),
        (
            Params {
                n_threads: 0,
                ..default
            },
            "n_threads is 0, expected 1 to 256",
        ),
        (
            Params {
                prompt_bytes: 0,
                ..default
            },
            "prompt_bytes is 0, expected 1 to 16777216",
        ),
        (
            Params {
                temperature: f32::NAN,
                ..default
            },
            "sampler setting temperature is out of range",
        ),
    ];
    for (params, expected) in cases {
        let (status, message) = needed(&tale, &params).expect_err(expected);
        assert_eq!(
            (status, &*message),
            (Status::SLUICE_CORE_INVALID_ARGUMENT, expected)
        );
    }
    let (status, message) = needed(b"GGUF", &default).expect_err("no model");
    assert_eq!(status, Status::SLUICE_CORE_INVALID_MODEL, "{message}");
}

type Said = (Status, String);

fn needed(tale: &[u8], params: &Params) -> Result<usize, Said> {
    let (mut bytes, mut error) = (0, EMPTY);
    let (start, len, error_at) = (tale.as_ptr(), tale.len(), &raw mut error);
    // SAFETY: everything is owned by this function.
    let status =
        unsafe { capi::sluice_core_memory_bytes(start, len, params, &raw mut bytes, error_at) };
    said(status, &error).map(|()| bytes)
}

fn init(tale: &[u8], params: &Params, memory: &mut [u8]) -> Result<*mut Core, Said> {
    let (mut core, mut error) = (ptr::null_mut(), EMPTY);
    let at: *mut c_void = memory.as_mut_ptr().cast();
    let (start, len, error_at) = (tale.as_ptr(), tale.len(), &raw mut error);
    // SAFETY: everything lives as long as the test that uses it.
    let status = unsafe {
        capi::sluice_core_init(
            start,
            len,
            params,
            at,
            memory.len(),
            &raw mut core,
            error_at,
        )
    };
    said(status, &error).map(|()| core)
}

/// The continuation of the prompt, of at most `most` pieces.
fn generate(core: *mut Core, prompt: &str, n_predict: usize, most: usize) -> Result<String, Said> {
    unsafe extern "C" fn push(piece: *const c_char, len: usize, user_data: *mut c_void) -> bool {
        // SAFETY: it is the tuple below.
        let (text, left) = unsafe { &mut *user_data.cast::<(String, usize)>() };
        // SAFETY: guaranteed by the library.
        let piece = unsafe { slice::from_raw_parts(piece.cast::<u8>(), len) };
        text.push_str(core::str::from_utf8(piece).expect("whole characters"));
        *left -= 1;
        *left > 0
    }
    let (mut made, mut error) = ((String::new(), most), EMPTY);
    let user_data: *mut c_void = (&raw mut made).cast();
    let (text, len, error_at) = (prompt.as_ptr().cast(), prompt.len(), &raw mut error);
    // SAFETY: everything is owned by this function, and the engine lives as long as the test that
    // uses it.
    let status = unsafe {
        capi::sluice_core_generate(core, text, len, n_predict, Some(push), user_data, error_at)
    };
    said(status, &error).map(|()| made.0)
}

fn said(status: Status, error: &Error) -> Result<(), Said> {
    if status == Status::SLUICE_CORE_OK {
        return Ok(());
    }
    assert_eq!(error.status, status);
    // SAFETY: the library terminates it with a zero.
    let message = unsafe { CStr::from_ptr(error.message.as_ptr()) };
    Err((status, message.to_str().expect("UTF-8").to_owned()))
}

const EMPTY: Error = Error {
    status: Status::SLUICE_CORE_OK,
    message: [0; 244],
};

/// The host's cores: threads that live for one job.
unsafe extern "C" fn spread(_: *mut c_void, n: usize, job: capi::Job, argument: *mut c_void) {
    let argument = argument.expose_provenance();
    std::thread::scope(|scope| {
        for rank in 0..n {
            scope.spawn(move || {
                // SAFETY: guaranteed by the library; the argument is shared between ranks.
                unsafe { job(ptr::with_exposed_provenance_mut(argument), rank) }
            });
        }
    });
}

/// The example, with the model in `model` linked in.
fn compile(model: &Path) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = model.file_stem().expect("a name").to_str().expect("UTF-8");
    let program = scratch(name).with_extension(std::process::id().to_string());
    let output = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args([
            "-std=c11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-ffreestanding",
            "-nostdlib",
        ])
        .args(["-static", "-no-pie"])
        .arg(format!("-DMODEL={:?}", model.display().to_string()))
        .arg("-I")
        .arg(folder.join("include"))
        .arg(folder.join("../../examples/freestanding.c"))
        .arg(core_library())
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C compiler (Debian: gcc)");
    assert!(output.status.success(), "{}", text_of(&output));
    program
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("core-capi");
    fs::create_dir_all(&folder).expect("writable");
    folder.join(name)
}
