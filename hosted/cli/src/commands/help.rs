//! The help of all commands: a heading for every flag, a summary for `-h`, and groups of commands.

use clap::builder::styling::{AnsiColor, Style};
use clap::builder::{StyledStr, Styles};
use clap::{Arg, ArgAction, Command, Id};
use core::fmt::Write as _;
use sluice::core::kernels::words;
use std::collections::HashMap;

/// Colours of help and errors, if the terminal supports them and `NO_COLOR` is not set.
pub(super) const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Yellow.on_default().bold())
    .usage(AnsiColor::Yellow.on_default().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Green.on_default());

/// Commands by purpose, as the program's help lists them.
const COMMANDS: [(&str, &[&str]); 6] = [
    (
        "Run a model",
        &["run", "chat", "embed", "rerank", "tokenize"],
    ),
    ("Serve", &["serve", "launch", "pull"]),
    #[cfg(feature = "train")]
    (
        "Make model files",
        words!("convert quantize imatrix sparsify train lora pack unpack gguf-split hash import"),
    ),
    #[cfg(not(feature = "train"))]
    (
        "Make model files",
        words!("convert quantize imatrix sparsify lora pack unpack gguf-split hash import"),
    ),
    (
        "Measure and inspect",
        &["bench", "perplexity", "inspect", "experts", "doctor"],
    ),
    ("Gate a stream", &["gate"]),
    ("Set up the shell", &["completions", "man", "help"]),
];

/// The headings of flags, by the structs that declare them.
const HEADINGS: &[(&str, &str)] = &[
    ("Cli", GENERAL),
    ("AccessArgs", "Model"),
    ("PlacementArgs", "Threads and memory"),
    ("ExpertArgs", "Experts on disk"),
    ("AdapterLoadArgs", ADAPTERS),
    ("SpeculationArgs", "Speculation (never changes an answer)"),
    ("PromptCacheArgs", "Prompt cache"),
    ("LimitArgs", "Client limits"),
    ("SchedulingArgs", "Scheduling and caches"),
    ("InputArgs", "Input"),
    ("PolicyArgs", "Policy"),
    ("OutputArgs", "Output"),
    ("WorkerArgs", "Worker"),
];

/// Headings of single flags, for commands with the flags of a struct. clap cannot tell which flags are a
/// struct's own if others are flattened into it.
const SINGLE: &[Single] = &[
    Single {
        with: "HubArgs",
        heading: "Model",
        flags: words!(
            "model hf_repo hf_file alias models_dir models_preset models_autoload no_models_autoload models_max model_turn sleep_idle_seconds any_model"
        ),
    },
    Single {
        with: "PlacementArgs",
        heading: "Engine",
        flags: words!(
            "ctx_size batch_size ubatch_size threads cache_type_k cache_type_v no_kv_rotation longrope isa \
             load_mode gather_tables activation sparse sparse_file check_tensors context_shift no_context_shift keep"
        ),
    },
    Single {
        with: "AdapterLoadArgs",
        heading: ADAPTERS,
        flags: words!(
            "lora lora_scaled lora_each in_turn lora_init_without_apply lora_modules lora_dir \
             enable_lora max_loras max_cpu_loras max_lora_rank allow_lora_updates"
        ),
    },
    Single {
        with: "SamplingArgs",
        heading: "Sampling",
        flags: words!(
            "seed samplers sampling_seq temp dynatemp_range dynatemp_exp top_k top_p min_p typical \
             top_nsigma xtc_probability xtc_threshold min_keep repeat_last_n repeat_penalty \
             presence_penalty frequency_penalty dry_multiplier dry_base dry_allowed_length \
             dry_penalty_last_n dry_sequence_breaker mirostat mirostat_lr mirostat_ent logit_bias \
             ignore_eos logprobs reverse_prompt stop"
        ),
    },
    Single {
        with: "SamplingArgs",
        heading: "Chat template",
        flags: words!(
            "chat_template chat_template_file chat_template_kwargs reasoning reasoning_format \
             reasoning_budget"
        ),
    },
    Single {
        with: "SamplingArgs",
        heading: "Constraints",
        flags: &["grammar", "grammar_file", "json_schema", "json_schema_file"],
    },
    Single {
        with: "ServeAdapterArgs",
        heading: "Server",
        flags: words!(
            "host port ollama api_key api_key_file keys cache_scope allow_priority ui no_ui metrics slots no_slots slot_save_path log_prompts keep_billing_line allow_pull pull_max"
        ),
    },
];

/// Flags under one heading, in commands with the flags of a struct.
struct Single {
    with: &'static str,
    heading: &'static str,
    flags: &'static [&'static str],
}

const GENERAL: &str = "General";
const ADAPTERS: &str = "Adapters (LoRA)";

/// Flags shown in the summary of a command that has more than [`SUMMARY_FLAGS_MAX`].
const ESSENTIAL: &[&str] = words!(
    "model hf_repo prompt file prompts n_predict json no_display_prompt ctx_size threads \
     cache_type_k expert_cache lora lora_modules temp top_k top_p min_p seed repeat_penalty \
     grammar json_schema stop spec_type model_draft prompt_cache system_prompt chat_template \
     single_turn host port api_key alias models_dir parallel metrics cache_ram cache_dir max_queue \
     n_prompt n_gen n_depth n_parallel repetitions output strict plot pooling embd_output_format \
     query documents top_n output_format ids chunks kl_divergence_base kl_divergence in_file \
     overwrite imatrix tensor_type pure allow_requantize bits_per_weight calibrate dry_run format \
     frame_len measure threshold hang_over noise_floor decisions out watch quiet help \
     config key_model key_dataset key_eval_dataset key_output_dir key_lora_r key_lora_alpha \
     key_target_modules key_learning_rate key_num_train_epochs key_max_length key_seed \
     key_resume_from_checkpoint"
);

/// Essential flags that set defaults of requests in `sluice serve`, whose summary has no room for them.
const OF_REQUESTS: &[&str] =
    words!("temp top_k top_p min_p seed repeat_penalty grammar json_schema stop");

/// More flags than this do not fit on a screen.
const SUMMARY_FLAGS_MAX: usize = 26;

/// The width of help, in columns.
const WIDTH: usize = 100;

/// `program` with a heading for every flag, its commands in groups, and lines that fit a terminal.
pub(super) fn arranged(program: Command) -> Command {
    let help = Arg::new("help").short('h').long("help");
    let help = help.action(ArgAction::Help).global(true);
    let help = help.help("Print a summary (-h) or all of the help (--help)");
    let version = Arg::new("version").short('V').long("version");
    let version = version.action(ArgAction::Version).help("Print the version");
    let program = program
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args([help, version.help_heading(GENERAL)])
        .subcommand_required(false)
        .arg_required_else_help(false);
    let template = template(&program);
    with_headings(program).help_template(template)
}

fn with_headings(command: Command) -> Command {
    let mut headings = HashMap::new();
    for group in command.get_groups() {
        let name = group.get_id().as_str();
        let heading = HEADINGS.iter().find(|(of, _)| *of == name);
        if let Some((_, heading)) = heading {
            headings.extend(group.get_args().map(|arg| (name_of(arg), *heading)));
        }
    }
    for single in SINGLE {
        let has = |group: &clap::ArgGroup| group.get_id() == single.with;
        if command.get_groups().any(has) {
            let flags = single.flags.iter();
            headings.extend(flags.map(|&flag| (flag.to_owned(), single.heading)));
        }
    }
    let command = command.mut_args(|arg| {
        let heading = headings.get(&name_of(arg.get_id())).copied();
        let heading = match arg.get_id().as_str() {
            "help" | "version" => Some(GENERAL),
            _ => heading.filter(|_| !arg.is_positional()),
        };
        // The keys of a configuration bring their headings.
        let arg = match arg.get_id().as_str().starts_with("key_") {
            true => arg,
            false => arg.help_heading(heading),
        };
        match arg.get_long_help().map(|text| wrapped(&text.to_string())) {
            Some(text) => arg.long_help(text),
            None => arg,
        }
    });
    command.mut_subcommands(with_headings)
}

/// The name of a flag in the tables.
fn name_of(flag: &Id) -> String {
    flag.as_str().replace('-', "_")
}

/// `text` in lines that fit below a flag.
fn wrapped(text: &str) -> String {
    const INDENT: usize = 10;
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH - INDENT
            {
                lines.push(core::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines.join("\n")
}

/// The program's help, with its commands in groups.
fn template(program: &Command) -> StyledStr {
    let styled =
        |style: &Style, text: &str| format!("{}{text}{}", style.render(), style.render_reset());
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in COMMANDS.iter().filter(|(_, names)| !names.is_empty()) {
        let heading = styled(STYLES.get_header(), &format!("{heading}:"));
        let _ = writeln!(text, "\n{heading}");
        for name in *names {
            let about = match program.find_subcommand(name).and_then(Command::get_about) {
                Some(about) => about.to_string(),
                None => "Print the help of a command".to_owned(),
            };
            let name = styled(STYLES.get_literal(), &format!("{name:<11}"));
            let _ = writeln!(text, "  {name}  {about}");
        }
    }
    let heading = styled(STYLES.get_header(), "Options:");
    let _ = write!(text, "\n{heading}\n{{options}}{{after-help}}");
    text.into()
}

/// `command` with help that fits on a screen: its essential flags, one line each.
pub(super) fn summary(command: Command) -> Command {
    let is_shown = |arg: &&Arg| !arg.is_hide_set();
    let count = command.get_arguments().filter(is_shown).count();
    let is_long = count > SUMMARY_FLAGS_MAX;
    let name = command.get_name().to_owned();
    let command = command.mut_args(|arg| {
        let id = name_of(arg.get_id());
        let is_of_request = name == "serve" && OF_REQUESTS.contains(&&*id);
        let is_essential = !is_of_request && ESSENTIAL.contains(&&*id) || arg.is_positional();
        let is_hidden = arg.is_hide_set() || is_long && !is_essential;
        let is_default_plain = arg.get_default_values().iter().any(|value| value == "-1");
        let arg = arg
            .hide_default_value(is_default_plain)
            .hide(is_hidden)
            .hide_env(true)
            .hide_possible_values(true);
        // Aliases would take a line of their own.
        arg.visible_alias(None::<&'static str>)
    });
    let command = match command.get_after_help().map(examples) {
        Some(examples) if command.get_name() != "sluice" => {
            let more = if is_long {
                format!("\n\n`sluice {name} --help` describes all {count} flags.")
            } else {
                String::new()
            };
            command.after_help(examples + &more)
        }
        _ => command,
    };
    command.mut_subcommands(summary)
}

/// The first examples of a command's help.
fn examples(help: &StyledStr) -> String {
    let help = help.to_string();
    let lines = help.lines().skip_while(|line| *line != "Examples:");
    let shown: Vec<_> = lines.take_while(|line| !line.is_empty()).take(4).collect();
    shown.join("\n")
}

#[cfg(test)]
mod tests;
