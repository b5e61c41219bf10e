//! Requests from Python's arguments.

use crate::answers::refused;
use crate::arguments::{Argument, Arguments};
use crate::values::{adapter, biases, millis, order, prompts, words};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::wrap_pyfunction;
use sluice::core::sampler::SamplerConfig;
use sluice_serve::api::{
    ApiError, ChatRequest, CompletionPrompt, CompletionRequest, Defaults, FieldName, Generation,
    Infill, ModelChoice, RerankRequest, TOP_MAX,
};
use sluice_serve::openai;
use sluice_text::assistant::{Tool, ToolChoice, ToolError};
use sluice_text::grammar::GrammarSource;
use sluice_text::sampling::{PARAMETERS, Parameter, Setting};

/// Adds this file's function and class.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SamplingParameter>()?;
    module.add_function(wrap_pyfunction!(check_regex, module)?)?;
    module.add_function(wrap_pyfunction!(sampling_parameters, module)?)
}

/// A request, and what Python calls its fields.
pub(crate) struct Asked<R> {
    pub(crate) request: R,
    pub(crate) names: Vec<FieldName>,
}

/// An argument, and how it is written into a request.
struct Field<R> {
    name: &'static str,
    write: fn(&mut R, &Argument<'_>) -> PyResult<()>,
}

const fn field<R>(
    name: &'static str,
    write: fn(&mut R, &Argument<'_>) -> PyResult<()>,
) -> Field<R> {
    Field { name, write }
}

/// A request to continue texts.
pub(crate) fn completion(
    values: Bound<'_, PyDict>,
    defaults: &Defaults,
) -> PyResult<Asked<CompletionRequest>> {
    let arguments = &mut Arguments::new(values);
    let mut request = CompletionRequest::new(defaults);
    let mut names = NAMES.to_vec();
    request.model = model(arguments)?;
    generation(arguments, &mut request.generation, &mut names)?;
    let n_probs = &mut request.generation.sampling.n_probs;
    if let Some(likely) = arguments.get("logprobs")? {
        let wanted = likely.bool().map(|wanted| wanted.then_some(0));
        let wanted = wanted.or_else(|_| likely.count(TOP_MAX).map(Some))?;
        *n_probs = wanted.or(*n_probs);
    }
    if let Some(echo) = arguments.get("echo")? {
        request.returns_prompts = echo.bool()?;
        request.prompt_logprobs = n_probs.filter(|_| request.returns_prompts);
    }
    if let Some(top) = arguments.get("prompt_logprobs")? {
        request.prompt_logprobs = Some(top.count(TOP_MAX)?);
    }
    let prompt = arguments.get("prompt")?.ok_or_else(|| missing("prompt"))?;
    request.prompts = match arguments.get("suffix")? {
        Some(suffix) if !suffix.text()?.is_empty() => {
            let needs = |_| suffix.refused("needs a prompt that is one string");
            vec![CompletionPrompt::Infill(Infill {
                prefix: prompt.text().map_err(needs)?,
                suffix: suffix.text()?,
                extra: Vec::new(),
            })]
        }
        _ => prompts(&prompt, &mut names)?,
    };
    let own = ["logprobs", "echo", "prompt_logprobs", "prompt", "suffix"];
    arguments.check(|name| own.contains(&name) || is_common(name))?;
    Ok(Asked { request, names })
}

/// A request for the next message of a conversation.
pub(crate) fn chat(values: Bound<'_, PyDict>, defaults: &Defaults) -> PyResult<Asked<ChatRequest>> {
    let arguments = &mut Arguments::new(values);
    let mut request = ChatRequest::new(defaults);
    let mut names = NAMES.to_vec();
    request.model = model(arguments)?;
    generation(arguments, &mut request.generation, &mut names)?;
    write(CHAT, &mut request, arguments)?;
    if request.messages.is_empty() {
        return Err(missing("messages"));
    }
    let tools = Tool::all_of(&request.tools.clone().into()).map_err(of_tools)?;
    if let Some(choice) = arguments.get("tool_choice")? {
        request.tool_choice = ToolChoice::parse(&choice.json()?, &tools).map_err(of_tools)?;
    }
    let top = arguments.get("top_logprobs")?;
    let n_top = top.as_ref().map(|top| top.count(TOP_MAX)).transpose()?;
    let logprobs = arguments.get("logprobs")?;
    match (logprobs.map(|logprobs| logprobs.bool()).transpose()?, top) {
        (Some(true), _) => request.generation.sampling.n_probs = Some(n_top.unwrap_or(0)),
        (_, Some(top)) if n_top > Some(0) => return Err(top.refused("needs logprobs=True")),
        _ => {}
    }
    let own = ["tool_choice", "top_logprobs", "logprobs"];
    arguments.check(|name| own.contains(&name) || is_in(CHAT, name) || is_common(name))?;
    Ok(Asked { request, names })
}

/// A request to rank documents.
pub(crate) fn rerank(values: Bound<'_, PyDict>) -> PyResult<Asked<RerankRequest>> {
    let arguments = &mut Arguments::new(values);
    let mut request = RerankRequest {
        model: model(arguments)?,
        ..RerankRequest::default()
    };
    let query = arguments.get("query")?.ok_or_else(|| missing("query"))?;
    request.query = query.text()?;
    if let Some(documents) = arguments.get("documents")? {
        let document = |document: &Argument<'_>| match document.arguments() {
            Ok(mut parts) => parts
                .get("text")?
                .ok_or_else(|| document.wrong("a string"))?
                .text(),
            Err(_) => document.text(),
        };
        let items = documents.items("a list of strings")?;
        if items.len() > DOCUMENTS_MAX {
            return Err(documents.refused(format!("at most {DOCUMENTS_MAX} are allowed")));
        }
        request.documents = items.iter().map(document).collect::<PyResult<_>>()?;
    }
    arguments.check(|name| ["query", "documents", "model", "lora"].contains(&name))?;
    Ok(Asked {
        request,
        names: NAMES.to_vec(),
    })
}

/// The options of a text that is sampled outside of requests.
pub(crate) fn sampling(
    values: Bound<'_, PyDict>,
    defaults: &Defaults,
) -> PyResult<Asked<Generation>> {
    let mut request = Generation::new(defaults);
    let mut names = NAMES.to_vec();
    generation(&mut Arguments::new(values), &mut request, &mut names)?;
    Ok(Asked { request, names })
}

/// Python's names for fields that both kinds of requests for text have.
const NAMES: [FieldName; 6] = [
    FieldName::new("adapters", "lora"),
    FieldName::new("slot", "id_slot"),
    FieldName::new("stop_tokens", "stop_token_ids"),
    FieldName::new("allowed_tokens", "allowed_token_ids"),
    FieldName::new("bad_words", "bad_words_token_ids"),
    FieldName::new("continues_last", "continue_final_message"),
];

/// How texts are generated. Numbers for samplers are in [`PARAMETERS`]; of two names for one field the later one counts.
#[rustfmt::skip]
const GENERATION: &[Field<Generation>] = &[
    field("n", |all, x| x.count(COUNT_MAX).map(|n| all.n = n)),
    field("n_predict", max_tokens),
    field("max_tokens", max_tokens),
    field("max_completion_tokens", max_tokens),
    field("min_tokens", |all, x| x.count(COUNT_MAX).map(|n| all.min_tokens = n)),
    field("stream", |all, x| x.bool().map(|is| all.streams = is)),
    field("seed", |all, x| x.int(-1..=i64::MAX).map(|seed| all.seed = u64::try_from(seed).ok())),
    field("stop", |all, x| x.texts().map(|stop| all.stop = stop)),
    field("stop_token_ids", |all, x| x.tokens().map(|tokens| all.stop_tokens = tokens)),
    field("include_stop_str_in_output", |all, x| x.bool().map(|is| all.shows_stop = is)),
    field("skip_special_tokens", |all, x| x.bool().map(|is| all.shows_special = !is)),
    field("penalize_prompt", |all, x| x.bool().map(|is| all.sampling.counts_prompt = is)),
    field("ignore_eos", |all, x| x.bool().map(|is| all.sampling.ignore_eos = is)),
    field("n_probs", |all, x| x.count(TOP_MAX).map(|n| all.sampling.n_probs = Some(n).filter(|&n| n > 0))),
    field("samplers", |all, x| order(x).map(|order| all.sampling.config.order = order)),
    field("dry_sequence_breakers", |all, x| x.texts().map(|texts| all.sampling.dry_sequence_breakers = texts)),
    field("logit_bias", |all, x| biases(x).map(|biases| all.logit_bias = biases)),
    field("bad_words_token_ids", |all, x| words(x).map(|words| all.sampling.bad_words = words)),
    field("allowed_token_ids", |all, x| x.tokens().map(|tokens| all.allowed_tokens = Some(tokens))),
    field("priority", |all, x| x.int(-1000..=1000).map(|n| all.priority = i32::try_from(n).unwrap_or(0))),
    field("deadline_ms", |all, x| millis(x).map(|time| all.deadline = time)),
    field("t_max_predict_ms", |all, x| millis(x).map(|time| all.predict_for = time)),
    field("cache_prompt", |all, x| x.bool().map(|is| all.uses_cache = is)),
    field("cache_salt", |all, x| x.text().map(|salt| all.cache_salt = salt.into())),
    field("id_slot", |all, x| x.int(-1..=u32::MAX.into()).map(|slot| all.slot = u32::try_from(slot).ok())),
    field("context_shift", |all, x| x.bool().map(|is| all.context_shift = Some(is))),
    field("n_keep", |all, x| x.int(-1..=COUNT_MAX as i64).map(|n| all.n_keep = usize::try_from(n).unwrap_or(usize::MAX))),
    field("return_progress", |all, x| x.bool().map(|is| all.reports_progress = is && all.streams)),
    field("timings_per_token", |all, x| x.bool().map(|is| all.times_pieces = is)),
];

#[rustfmt::skip]
const CHAT: &[Field<ChatRequest>] = &[
    field("messages", |chat, x| openai::messages(&x.json()?).map(|all| chat.messages = all).map_err(of_json)),
    // Some clients send the message itself.
    field("continue_final_message", |chat, x| x.is_text().then_some(true).map_or_else(|| x.bool(), Ok).map(|is| chat.continues_last = is)),
    field("add_generation_prompt", |chat, x| x.bool().map(|is| chat.add_generation_prompt = is)),
    field("chat_template_kwargs", |chat, x| x.object().map(|map| chat.template_kwargs.extend(map))),
    field("enable_thinking", |chat, x| x.bool().map(|is| drop(chat.template_kwargs.insert("enable_thinking".into(), is.into())))),
    field("reasoning_effort", |chat, x| x.text().map(|text| drop(chat.template_kwargs.insert("reasoning_effort".into(), text.into())))),
    field("documents", |chat, x| x.list().map(|list| chat.documents = list)),
    field("tools", |chat, x| x.list().map(|list| chat.tools = list)),
    field("parallel_tool_calls", |chat, x| x.bool().map(|is| chat.parallel_calls = is)),
    field("reasoning_format", |chat, x| x.word(&["none", "auto", "deepseek"]).map(|word| chat.splits_reasoning = word != "none")),
    field("reasoning_budget", reasoning_budget),
];

/// The grammars of an answer, of which one may be given.
const GRAMMARS: &[Field<Option<GrammarSource>>] = &[
    field("grammar", |grammar, x| {
        x.text()
            .map(|text| *grammar = (!text.is_empty()).then_some(GrammarSource::Gbnf(text)))
    }),
    field("regex", |grammar, x| {
        x.text()
            .map(|text| *grammar = Some(GrammarSource::Regex(text)))
    }),
    field("json_schema", |grammar, x| {
        let source = openai::json_schema(&x.json()?).map_err(of_json)?;
        *grammar = Some(source);
        Ok(())
    }),
    field("response_format", |grammar, x| {
        *grammar = openai::response_format(&x.json()?).map_err(of_json)?;
        Ok(())
    }),
];

/// A sampling parameter: its names, and the range of its values.
#[pyclass(frozen, get_all, module = "sluice._native")]
pub(crate) struct SamplingParameter {
    names: Vec<&'static str>,
    is_integer: bool,
    least: f64,
    most: f64,
    default: f64,
}

/// Checks a regular expression before a request has it.
#[pyfunction]
fn check_regex(pattern: &str) -> PyResult<()> {
    sluice_text::grammar::check_regex(pattern).map_err(PyValueError::new_err)
}

/// All sampling parameters that are numbers.
#[pyfunction]
fn sampling_parameters() -> Vec<SamplingParameter> {
    let shown = |parameter: &Parameter| {
        let (is_integer, [least, most, default]) = match &parameter.setting {
            Setting::Float(place) => {
                let default = (place.get)(&SamplerConfig::DEFAULT);
                (
                    false,
                    [*place.range.start(), *place.range.end(), default].map(f64::from),
                )
            }
            Setting::Int(place) => {
                let default = (place.get)(&SamplerConfig::DEFAULT);
                (
                    true,
                    [*place.range.start(), *place.range.end(), default].map(|n| n as f64),
                )
            }
        };
        SamplingParameter {
            names: names_of(parameter),
            is_integer,
            least,
            most,
            default,
        }
    };
    PARAMETERS.iter().map(shown).collect()
}

/// Python's own names of sampling parameters.
const ALIASES: [(&str, &str); 3] = [
    ("temperature", "temp"),
    ("repeat_last_n", "last_n_tokens_size"),
    ("mirostat", "mirostat_mode"),
];

/// All names of a sampling parameter; the first one that is given counts.
fn names_of(parameter: &Parameter) -> Vec<&'static str> {
    let alias = ALIASES.iter().find(|(name, _)| *name == parameter.name);
    let alias = alias.map(|(_, alias)| *alias);
    [Some(parameter.name), parameter.alias, alias]
        .into_iter()
        .flatten()
        .collect()
}

fn is_in<R>(table: &[Field<R>], name: &str) -> bool {
    table.iter().any(|field| field.name == name)
}

fn is_common(name: &str) -> bool {
    is_in(GENERATION, name)
        || ["model", "lora"].contains(&name)
        || is_in(GRAMMARS, name)
        || PARAMETERS
            .iter()
            .any(|parameter| names_of(parameter).contains(&name))
}

fn write<R>(table: &[Field<R>], request: &mut R, arguments: &mut Arguments<'_>) -> PyResult<()> {
    for field in table {
        if let Some(argument) = arguments.get(field.name)? {
            (field.write)(request, &argument)?;
        }
    }
    Ok(())
}

fn generation(
    arguments: &mut Arguments<'_>,
    all: &mut Generation,
    names: &mut Vec<FieldName>,
) -> PyResult<()> {
    write(GENERATION, all, arguments)?;
    let config = &mut all.sampling.config;
    for parameter in &PARAMETERS {
        let Some(argument) = arguments.first(&names_of(parameter))? else {
            continue;
        };
        match &parameter.setting {
            Setting::Float(place) => (place.set)(config, argument.float(place.range.clone())?),
            Setting::Int(place) => (place.set)(config, argument.int(place.range.clone())?),
        }
    }
    for field in GRAMMARS {
        let Some(argument) = arguments.get(field.name)? else {
            continue;
        };
        let mut grammar = None;
        (field.write)(&mut grammar, &argument)?;
        if grammar.is_some() && all.grammar.is_some() {
            return Err(argument.refused("cannot be combined with another grammar"));
        }
        if grammar.is_some() {
            names.push(FieldName::new("grammar", field.name));
            all.grammar = grammar;
        }
    }
    Ok(())
}

fn max_tokens(all: &mut Generation, x: &Argument<'_>) -> PyResult<()> {
    let n = x.int(-1..=COUNT_MAX as i64)?;
    all.max_tokens = usize::try_from(n).ok();
    Ok(())
}

fn reasoning_budget(chat: &mut ChatRequest, x: &Argument<'_>) -> PyResult<()> {
    // -1 selects the default.
    if let Ok(n) = usize::try_from(x.int(-1..=COUNT_MAX as i64)?) {
        chat.reasoning_budget = Some(n);
    }
    Ok(())
}

fn model(arguments: &mut Arguments<'_>) -> PyResult<ModelChoice> {
    let name = arguments.get("model")?;
    let adapters = arguments.get("lora")?.map(|list| {
        let list = list.items("a list of {id, scale}")?;
        list.iter().map(adapter).collect::<PyResult<_>>()
    });
    Ok(ModelChoice {
        name: name.map(|name| name.text()).transpose()?,
        adapters: adapters.transpose()?,
        keep_for: None,
    })
}

fn missing(name: &str) -> PyErr {
    refused(&ApiError::field(name, "is missing"))
}

fn of_json(error: ApiError) -> PyErr {
    refused(&error)
}

fn of_tools(error: ToolError) -> PyErr {
    refused(&ApiError::field(error.field, error.what))
}

const DOCUMENTS_MAX: usize = 2048;
const COUNT_MAX: usize = 1 << 30;
