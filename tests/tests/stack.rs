//! The worst depth of the stack: what an embedder's cores need. Measured by painting a separate stack, running on it,
//! and checking how much paint was overwritten.
#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::arch::asm;
use core::ffi::c_void;
use sluice_core::engine::{Engine, EngineLimits, StepOptions};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::model::{Loader, ModelConfig, ModelPlan};
use sluice_core::team::{SpinWait, StopFlag};
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer};
use sluice_tests::frames::Frames;
use sluice_tests::hosted::TALE;
use sluice_tests::run::{self, Aligned, Room, Weights, entries};
use sluice_tests::{fixture, measured, shared_folder};

/// What `docs/embedding.md` promises.
const DEPTH_MAX: usize = 64 << 10;

#[test]
fn no_worker_needs_more_than_64_kib() {
    let tale = std::fs::read(TALE).unwrap();
    let mut painted = Painted::new();
    let loading = painted.depth(|| load(&tale));
    let encoding = painted.depth(|| encode(&tale));
    measured(&format!(
        "stack: load {loading} bytes, tokenizer {encoding} bytes"
    ));
    assert!(loading.max(encoding) <= DEPTH_MAX);
    start(&mut painted, &tale);

    let mut files = vec![("Q4_K_M", tale)];
    // Types with a scale per 32 columns have kernels of their own.
    let in_q8_0 = std::fs::read(fixture("models/llama-Q8_0.gguf")).unwrap();
    files.push(("Q8_0", in_q8_0));
    if let Some(shared) = shared_folder() {
        let tale = std::fs::read(shared.join("models/tale-5.8m-Q8_0.gguf")).unwrap();
        files.push(("Q8_0", tale));
    }
    for table in run::tables() {
        for (ty, file) in &files {
            let depth = steps(&mut painted, ty, file, table);
            assert!(depth <= DEPTH_MAX, "{ty} {}", table.name());
        }
    }
    // Tables that do not run here have their kernels in this program, too. A step is never deeper above
    // a product than with the plain loops, whose smallest product has a frame of its own.
    let scalar = KernelTable::by_name("scalar", CpuFeatures::empty()).unwrap();
    let depths = files
        .iter()
        .map(|(ty, file)| steps(&mut painted, ty, file, scalar));
    let frames = Frames::of_program(&std::env::current_exe().unwrap());
    let above = depths.max().unwrap();
    let above_products = above - frames.smallest("scalar_table13panel_product");
    for (kernels, above) in [
        ("6x86_643amx", above_products),
        ("6x86_646avx512", above),
        ("6x86_644avx2", above),
    ] {
        let deepest = frames.deepest(kernels, "unpack");
        measured(&format!(
            "stack: {above} bytes above kernels, and {deepest:?}"
        ));
        assert!(above + deepest.bytes <= DEPTH_MAX);
    }
}

/// The depth of a step of many tokens, or of one.
fn steps(painted: &mut Painted, ty: &str, file: &[u8], table: &'static KernelTable) -> usize {
    let mut weights = Weights::plan(file).unwrap();
    let model = weights.load(file, 2).unwrap();
    let n_vocab = u32::try_from(model.config().n_vocab).unwrap();
    let ids: Vec<u32> = (0..64).map(|i| i * 61 % n_vocab).collect();
    let limits = EngineLimits::single(128, 1);
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model.clone(), table, &limits).unwrap();
    let prefill = painted.depth(|| step(&mut engine, &ids, 0));
    let decode = painted.depth(|| step(&mut engine, &[5], ids.len()));
    let name = table.name();
    measured(&format!(
        "stack: {ty} {name}: prefill {prefill} bytes, decode {decode} bytes"
    ));
    // A measurement that fails gives zero.
    assert!(prefill > 1000 && decode > 1000, "{name}");
    prefill.max(decode)
}

#[test]
fn frames_of_any_size_are_read() {
    #[inline(never)]
    fn on_stack<const N: usize>() {
        core::hint::black_box(&mut [1u8; N]);
    }
    on_stack::<900>();
    on_stack::<9000>();
    on_stack::<90_000>();
    let frames = Frames::of_program(&std::env::current_exe().unwrap());
    let deepest = frames.deepest("on_stack", "unpack");
    assert!((90_000..94_000).contains(&deepest.bytes), "{deepest:?}");
}

#[test]
fn paint_shows_what_was_used() {
    let mut painted = Painted::new();
    let used = painted.depth(|| {
        let room = core::hint::black_box([1u8; 12_000]);
        assert_eq!(core::hint::black_box(&room)[11_999], 1);
    });
    assert!((12_000..20_000).contains(&used), "{used}");
    let nothing = painted.depth(|| ());
    assert!(nothing < 1000, "{nothing}");
}

fn load(file: &[u8]) {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    let plan = ModelPlan::new(&gguf, &config).unwrap();
    let (mut weights, mut tables) = (
        Aligned::new(plan.weight_bytes),
        Aligned::new(plan.table_bytes),
    );
    let (weights, tables) = (weights.bytes_mut(), tables.bytes_mut());
    let loader = Loader::new(&gguf, &config, weights, tables).unwrap();
    let source = SliceSource(file);
    loader.work(&source, &mut [], || true).unwrap();
    loader.finish(&source).unwrap();
}

/// From a loaded model to an engine.
fn start(painted: &mut Painted, file: &[u8]) {
    let mut weights = Weights::plan(file).unwrap();
    let model = weights.load(file, 1).unwrap();
    let limits = EngineLimits::single(128, 1);
    let table = run::table();
    let mut room = None;
    let planning = painted.depth(|| room = Some(Room::plan(model.config(), &limits).unwrap()));
    let room = room.as_mut().unwrap();
    let making = painted.depth(|| drop(room.engine(model.clone(), table, &limits).unwrap()));
    measured(&format!(
        "stack: plan {planning} bytes, engine {making} bytes"
    ));
    assert!(planning.max(making) <= DEPTH_MAX);
}

fn encode(file: &[u8]) {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let mut words = vec![0; tokenizer::plan(&gguf).unwrap().words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).unwrap();
    let text = "Once upon a time, 1234 dragons wouldn't <|sleep|>.\n".repeat(9);
    let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
    let mut ids = vec![0; tokenizer.max_tokens(text.len())];
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    tokenizer
        .encode(&text, options, &mut workspace, &mut ids)
        .unwrap();
}

fn step(engine: &mut Engine<'_>, ids: &[u32], first_position: usize) {
    let stop = StopFlag::new();
    let mut batch = entries(ids, 0, first_position);
    let (_, all_but_last) = batch.split_last_mut().unwrap();
    for entry in all_but_last {
        entry.wants = sluice_core::engine::Wants::Nothing;
    }
    let options = StepOptions::new(&SpinWait, &stop);
    let step = engine.step(&batch, options).unwrap();
    step.join(0).unwrap().run().unwrap();
    assert!(step.finish().unwrap().logits(ids.len() - 1).is_some());
}

/// A stack, painted with a pattern.
struct Painted(Aligned);

impl Painted {
    const BYTES: usize = 1 << 20;
    const PAINT: u8 = 0xA5;

    fn new() -> Self {
        Self(Aligned::new(Self::BYTES))
    }

    /// The bytes of stack that `work` used.
    fn depth<F: FnOnce()>(&mut self, work: F) -> usize {
        unsafe extern "C" fn call<F: FnOnce()>(work: *mut c_void) {
            // SAFETY: the option below, which nothing else uses meanwhile.
            let work = unsafe { &mut *work.cast::<Option<F>>() };
            // A panic cannot be unwound from this stack: it ends the process, with its message.
            work.take().expect("called once")();
        }
        let stack = self.0.bytes_mut();
        stack.fill(Self::PAINT);
        let top = stack.as_mut_ptr().wrapping_add(Self::BYTES);
        let mut work = Some(work);
        let function: unsafe extern "C" fn(*mut c_void) = call::<F>;
        // SAFETY: the top is aligned to 64 bytes, as before a call; the old stack is kept in a
        // register that calls preserve, and is back before anything else happens.
        unsafe {
            asm!(
                "mov r12, rsp",
                "mov rsp, {top}",
                "call {function}",
                "mov rsp, r12",
                top = in(reg) top,
                function = in(reg) function,
                in("rdi") &raw mut work,
                out("r12") _,
                clobber_abi("C"),
            );
        }
        let stack = self.0.bytes_mut();
        let kept = stack.iter().take_while(|&&byte| byte == Self::PAINT);
        Self::BYTES - kept.count()
    }
}
