//! The table of keyword arguments: their names, the values they take, and what they set.

use super::Arguments;
use super::value::{Refusal, any, float, int, json, name, names, one_of, pairs};
use core::time::Duration;
use pyo3::prelude::*;
use sluice::adapter::Precision;
use sluice::core::kernels::KvType;
use sluice::core::kernels::lora::LoraType;
use sluice::core::model::Activation;
use sluice::core::model::LongRope;
use sluice::core::pooling::Pooling;
use sluice::core::sampler::{LogitBias, SamplerOrder};
use sluice::core::team::WORKERS_MAX;
use sluice::experts::policy::ExpertProfile;
use sluice::file::LoadMode;
use sluice::host::cpus::CpuList;
use sluice::host::isa::kernel_table;
use sluice::sparse::SparseMode;
use sluice::speculate::POSITIONS_MAX;
use sluice_pull::PullRequest;
use sluice_serve::NamedAdapter;
use sluice_serve::engine::EngineOptions;
use sluice_text::chat::check_template;
use sluice_text::sampling::{PARAMETERS, Parameter, Setting};
use std::path::PathBuf;

/// A keyword argument.
struct Keyword {
    /// Its names, one for each class that has it.
    names: &'static [&'static str],
    set: fn(&mut Arguments, &Bound<'_, PyAny>) -> Result<(), Refusal>,
}

macro_rules! keywords {
    ($($($name:ident)|+: $read:expr => |$arguments:ident, $value:ident| $set:expr;)*) => {
        &[$(Keyword {
            names: &[$(stringify!($name)),+],
            set: |$arguments, value| {
                let $value = ($read)(value)?;
                $set;
                Ok(())
            },
        }),*]
    };
}

/// Sets the argument `name`, unless the value is None; false if there is no such argument.
pub(super) fn set(
    arguments: &mut Arguments,
    name: &str,
    value: &Bound<'_, PyAny>,
) -> Result<bool, Refusal> {
    let keyword = KEYWORDS.iter().find(|known| known.names.contains(&name));
    let parameter = parameter(name);
    match (keyword, parameter) {
        (None, None) => return Ok(false),
        _ if value.is_none() => {}
        (Some(keyword), _) => (keyword.set)(arguments, value)?,
        (_, Some(parameter)) => {
            let config = &mut arguments.config.defaults.sampling.config;
            match &parameter.setting {
                Setting::Float(place) => (place.set)(config, float(place.range.clone())(value)?),
                Setting::Int(place) => (place.set)(config, int(place.range.clone())(value)?),
            }
        }
    }
    Ok(true)
}

/// The sampling parameter whose flag, with `_`, is `name`.
fn parameter(name: &str) -> Option<&'static Parameter> {
    let flag = name.replace('_', "-");
    let is_named = |known: &&Parameter| known.flag == flag || known.flag_alias == Some(&flag);
    PARAMETERS.iter().find(is_named)
}

const TOKENS_MAX: i64 = 1 << 24;
const MIB_MAX: i64 = 1 << 40;
const THREADS_MAX: i64 = WORKERS_MAX as i64;
const DRAFT_MAX: i64 = POSITIONS_MAX as i64;

fn flag(value: &Bound<'_, PyAny>) -> Result<bool, Refusal> {
    any("True or False")(value)
}

fn text(value: &Bound<'_, PyAny>) -> Result<String, Refusal> {
    any("a string")(value)
}

fn path(value: &Bound<'_, PyAny>) -> Result<PathBuf, Refusal> {
    any("a path")(value)
}

fn kv_type(value: &Bound<'_, PyAny>) -> Result<KvType, Refusal> {
    one_of(KvType::from_name, &KvType::ALL.map(KvType::name))(value)
}

/// Which neurons are left unread, or out.
fn sparse(value: &Bound<'_, PyAny>) -> Result<SparseMode, Refusal> {
    text(value)?.parse().map_err(Refusal::value)
}

/// The rotary divisors of a longrope model.
fn long_rope(name: &str) -> Option<LongRope> {
    match name {
        "short" => Some(LongRope::Short),
        "long" => Some(LongRope::Long),
        _ => None,
    }
}

/// The type of adapters in memory.
fn precision(name: &str) -> Option<Precision> {
    let mut types = LoraType::ALL.into_iter();
    let found = types.find(|ty| ty.name() == name).map(Precision::Type);
    found.or((name == "auto").then_some(Precision::Exact))
}

#[rustfmt::skip]
const KEYWORDS: &[Keyword] = keywords! {
    // The model.
    model: path => |all, file| all.model = Some(file);
    alias: text => |all, name| all.alias = Some(name);
    hf_repo: text => |all, repo| all.request = Some(PullRequest::parse(&repo).map_err(Refusal::value)?);
    hf_file: text => |all, file| all.hf_file = Some(file);
    hf_token: text => |all, token| all.access.token = Some(token);
    offline: flag => |all, is_set| all.access.offline = is_set;
    // The engine.
    n_ctx | max_model_len | kv_cache_tokens: int(0..=TOKENS_MAX) => |all, n| all.config.models.limits.n_ctx = n;
    n_batch | max_num_batched_tokens: int(1..=TOKENS_MAX) => |all, n| all.n_batch = Some(n);
    n_ubatch: int(1..=TOKENS_MAX) => |all, n| all.n_ubatch = Some(n);
    n_threads | threads: int::<i64>(-1..=THREADS_MAX) => |all, n| all.n_threads = usize::try_from(n).ok().filter(|&n| n > 0);
    n_parallel | max_num_seqs: int(1..=1024) => |all, n| all.config.models.limits.n_seq = n;
    type_k: kv_type => |all, ty| all.types().0 = ty;
    type_v: kv_type => |all, ty| all.types().1 = ty;
    longrope: one_of(long_rope, &["short", "long"]) => |all, form| all.config.models.limits.longrope = form;
    kv_rotation: flag => |all, is_set| all.config.models.limits.kv_rotation = is_set;
    isa: text => |all, name| all.config.models.limits.table = Some(kernel_table(Some(&name)).map_err(Refusal::value)?);
    activation: one_of(Activation::parse, &["relu", "drelu", "fatrelu:THRESHOLD", "silu"]) =>
        |all, activation| all.config.models.activation = Some(activation);
    sparse: sparse => |all, mode| all.config.models.limits.sparse = Some(mode);
    sparse_file: path => |all, file| all.config.models.sparse_file = Some(file);
    use_mmap: flag => |all, is_set| all.config.models.load_mode = if is_set { LoadMode::Map } else { LoadMode::Read };
    pooling: one_of(Pooling::from_name, &Pooling::ALL.map(Pooling::name)) =>
        |all, pooling| all.config.models.pooling = Some(pooling);
    // Threads and memory.
    cpu_mask: text => |all, mask| all.placement.cpu_mask = Some(CpuList::from_mask(&mask).map_err(Refusal::value)?);
    cpu_range: text => |all, range| all.placement.cpu_range = Some(CpuList::from_range(&range).map_err(Refusal::value)?);
    cpu_strict: flag => |all, is_set| all.placement.cpu_strict = Some(is_set);
    cores: name => |all, cores| all.placement.cores = Some(cores);
    share_by_speed: flag => |all, is_set| all.placement.share_by_speed = is_set;
    prio: int::<i64>(-1..=3) => |all, n| all.placement.priority = n.to_string().parse().map_err(Refusal::value)?;
    poll: int(0..=100) => |all, n| all.placement.poll = n;
    numa: name => |all, numa| all.placement.numa = Some(numa);
    huge_pages: flag => |all, is_set| all.placement.huge_pages = is_set;
    use_mlock: flag => |all, is_set| all.placement.locks = is_set;
    // Experts on disk.
    expert_cache_mib: int::<usize>(1..=1 << 30) => |all, mib| all.experts.cache_bytes = mib << 20;
    expert_io: name => |all, io| all.experts.io = Some(io);
    expert_policy: name => |all, policy| all.experts.policy = policy;
    expert_profile: path => |all, file| all.experts.profile = Some(ExpertProfile::read(&file).map_err(Refusal::value)?);
    expert_prefetch: flag => |all, is_set| all.experts.prefetch = is_set;
    expert_dirs: any("a list of paths") => |all, folders| all.experts.dirs = folders;
    expert_trace: path => |all, file| all.experts.trace = Some(file);
    expert_check: flag => |all, is_set| all.experts.check = is_set;
    // Speculation.
    spec_type: names => |all, kinds| all.drafts.kinds = kinds;
    model_draft | draft_model: path => |all, file| all.drafts.model = Some(file);
    spec_draft_n_max | num_pred_tokens: int(1..=DRAFT_MAX) => |all, n| all.drafts.n_max = Some(n);
    spec_draft_n_min: int(0..=DRAFT_MAX) => |all, n| all.drafts.n_min = n;
    spec_draft_p_min: float(0.0..=1.0) => |all, p| all.drafts.p_min = p;
    spec_fixed: flag => |all, is_set| all.drafts.is_fixed = is_set;
    threads_draft: int(1..=THREADS_MAX) => |all, n| all.drafts.n_threads = Some(n);
    ctx_size_draft: int(0..=TOKENS_MAX) => |all, n| all.drafts.n_ctx = n;
    cache_type_k_draft: kv_type => |all, ty| all.drafts.type_k = Some(ty);
    cache_type_v_draft: kv_type => |all, ty| all.drafts.type_v = Some(ty);
    // Scheduling and caches.
    turn_ms: int(1..=60_000) => |all, ms| all.config.engine.turn = Duration::from_millis(ms);
    prompt_share: float(0.0..=1.0) => |all, part| all.config.engine.prompt_share = part;
    max_queue: int(0..=1 << 32) => |all, n| all.config.engine.max_queue = n;
    cache_ram_mib: int(-1..=MIB_MAX) => |all, mib| all.config.engine.cache_ram = EngineOptions::cache_ram_bytes(Some(mib));
    prompt_cache_dir: path => |all, folder| all.config.engine.cache_dir = Some(folder);
    cache_disk_mib: int::<u64>(0..=MIB_MAX) => |all, mib| all.config.engine.cache_disk = mib << 20;
    checkpoint_every: int(1..=TOKENS_MAX) => |all, n| all.config.engine.checkpoint_every = n;
    telemetry_csv: path => |all, file| all.config.engine.telemetry = Some(file);
    threads_http: int(1..=256) => |all, n| all.n_preparing = Some(n);
    log_prompts: flag => |all, is_set| all.config.http.log_prompts = is_set;
    // Adapters.
    lora_scaled | lora_path: pairs("a mapping from paths to numbers") => |all, parts|
        all.config.models.adapters.named.extend(parts.into_iter().map(|(file, scale)| NamedAdapter::of_path(file, Some(scale))));
    lora_modules | adapters: pairs("a mapping from names to paths") => |all, named|
        all.config.models.adapters.named.extend(named.into_iter().map(|(name, file)| NamedAdapter { name, ..NamedAdapter::of_path(file, None) }));
    lora_dir: path => |all, folder| all.config.models.adapters.folder = Some(folder);
    enable_lora: flag => |all, is_set| all.enable_lora = is_set;
    allow_lora_updates: flag => |all, is_set| all.config.models.adapters.updates = is_set;
    max_loras: int(0..=1 << 20) => |all, n| all.config.engine.max_adapters = n;
    max_cpu_loras: int(1..=1 << 20) => |all, n| all.config.models.adapters.max_in_memory = n;
    max_lora_rank: int(1..=4096) => |all, n| all.max_lora_rank = Some(n);
    lora_dtype: one_of(precision, &["auto", "int8", "bf16", "f16", "f32"]) =>
        |all, precision| all.config.models.adapters.precision = precision;
    lora_base: path => |all, folder| all.config.models.adapters.base = Some(folder);
    // Chats.
    chat_template | chat_format: text => |all, template| {
        check_template(&template).map_err(Refusal::value)?;
        all.config.models.chat_template = Some(template);
    };
    chat_template_file: path => |all, file|
        all.config.models.chat_template = Some(std::fs::read_to_string(&file).map_err(Refusal::value)?);
    chat_template_kwargs: json => |all, variables| all.config.defaults.template_kwargs = variables;
    reasoning_format: one_of(splits_reasoning, &["none", "auto", "deepseek"]) =>
        |all, splits| all.config.defaults.splits_reasoning = splits;
    reasoning_budget: int::<i64>(-1..=1 << 30) => |all, n| all.config.defaults.reasoning_budget = usize::try_from(n).ok();
    // Defaults of requests.
    n_predict: int::<i64>(-1..=i64::from(i32::MAX)) => |all, n| all.config.defaults.n_predict = usize::try_from(n).ok();
    context_shift: flag => |all, is_set| {
        all.config.models.context_shift = is_set;
        all.config.defaults.context_shift = is_set;
    };
    samplers: text => |all, names| all.config.defaults.sampling.config.order =
        SamplerOrder::from_names(&names).map_err(Refusal::value)?;
    sampling_seq: text => |all, letters| all.config.defaults.sampling.config.order =
        SamplerOrder::from_letters(&letters).map_err(Refusal::value)?;
    dry_sequence_breaker: any("a list of strings") => |all, texts| all.config.defaults.sampling.dry_sequence_breakers = texts;
    logit_bias: pairs("a mapping from tokens to numbers") => |all, biases|
        all.config.defaults.sampling.biases = biases.into_iter().map(|(id, bias)| LogitBias { id, bias }).collect();
    ignore_eos: flag => |all, is_set| all.config.defaults.sampling.ignore_eos = is_set;
};

fn splits_reasoning(format: &str) -> Option<bool> {
    match format {
        "none" => Some(false),
        "auto" | "deepseek" => Some(true),
        _ => None,
    }
}
