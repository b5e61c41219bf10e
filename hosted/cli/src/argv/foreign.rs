//! Flags of llama.cpp's programs that a command here does not have: what becomes of each.
//!
//! Source: the flags of llama.cpp's `common/arg.cpp` (version of llama-cpp-python 0.3.36).

use crate::output::note;
use clap::Error;
use clap::error::ErrorKind;
use core::iter::Peekable;
use std::ffi::{OsStr, OsString};

/// What happens to flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// A note says why nothing is lost without it.
    Ignored(&'static str),
    /// An error says why, or what to type.
    Refused(&'static str),
}

/// Whether a flag has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    No,
    One,
    /// Only where the next argument is one of these words.
    Maybe(&'static [&'static str]),
}

/// Deals with `arg` and its value, if it is in the table. Returns whether it was.
///
/// # Errors
/// It is refused.
pub(super) fn settle(
    arg: &OsStr,
    rest: &mut Peekable<impl Iterator<Item = OsString>>,
) -> Result<bool, Error> {
    let text = arg.to_str().unwrap_or_default();
    let (flag, joined) = match text.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => (flag, Some(value)),
        _ => (text, None),
    };
    let found = TABLE.iter().find(|(flags, ..)| flags.contains(&flag));
    let Some(&(_, value, fate)) = found else {
        return Ok(false);
    };
    let is_next = |words: &[&str], next: &OsString| words.iter().any(|word| next == *word);
    let value = match (joined, value) {
        (Some(value), _) => Some(value.to_owned()),
        (None, No) => None,
        (None, One) => rest.next().map(|next| next.display().to_string()),
        (None, Maybe(words)) => rest
            .next_if(|next| is_next(words, next))
            .map(|next| next.display().to_string()),
    };
    let shown = value.map_or_else(|| flag.to_owned(), |value| format!("{flag} {value}"));
    match fate {
        Ignored(why) => {
            note(format_args!("note: {shown} changes nothing: {why}"));
            Ok(true)
        }
        Refused(why) => {
            let message = format!("{shown}: {why}\n");
            Err(Error::raw(ErrorKind::UnknownArgument, message))
        }
    }
}

use Fate::{Ignored, Refused};
use Value::{Maybe, No, One};

const SWITCH: Value = Maybe(&["on", "off", "auto", "0", "1", "true", "false"]);

const GPU: Fate = Ignored("there is no GPU here; everything runs on the CPU");
const FUSED: Fate = Ignored("attention is always computed in one pass");
const CACHE: Fate = Ignored("all sequences share one cache of pages");
const THREADS: Fate = Ignored("prompts and generation use the same threads (-t, -C, -Cr)");
const SAYS: Fate = Ignored("notes go to stderr as they are; -q leaves them out");
const FILE_SAYS: Fate = Refused(
    "the model's file says it; `sluice quantize --override-kv` writes a file that says otherwise",
);
const SERVER: Fate = Refused("there is no server yet");
const SPECULATION: Fate = Refused("speculative decoding is not there yet");
const ADAPTERS: Fate = Refused("adapters cannot be given on the command line yet");
const MEDIA: Fate = Refused("images, audio and video are not supported");
const TRAINING: Fate = Refused("training is not supported");
const SCORES: Fate = Refused("of llama-perplexity's tests there are perplexity and KL divergence");
const TURNS: Fate = Refused("the model's chat template says what stands around a message");
const THINKING: Fate = Refused("what a model thinks is a part of its answer here");

/// Flags, whether they have a value, and what happens.
const TABLE: &[(&[&str], Value, Fate)] = &[
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], One, GPU),
    (&["-sm", "--split-mode"], One, GPU),
    (&["-ts", "--tensor-split"], One, GPU),
    (&["-mg", "--main-gpu"], One, GPU),
    (&["-dev", "--device"], One, GPU),
    (
        &["-ncmoe", "--n-cpu-moe", "-ncffn", "--n-cpu-ffn"],
        One,
        GPU,
    ),
    (&["-ot", "--override-tensor"], One, GPU),
    (&["-fitt", "--fit-target", "-fitc", "--fit-ctx"], One, GPU),
    (&["-fit", "--fit", "-fitp", "--fit-print"], SWITCH, GPU),
    (
        &["-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"],
        No,
        GPU,
    ),
    (
        &[
            "-cmoe",
            "--cpu-moe",
            "--no-host",
            "-bs",
            "--backend-sampling",
        ],
        No,
        GPU,
    ),
    (&["--op-offload", "--no-op-offload"], No, GPU),
    (
        &["--list-devices"],
        No,
        Refused("`sluice doctor` says what this machine has"),
    ),
    (&["--rpc"], One, Refused("a model runs on one machine")),
    (&["-fa", "--flash-attn"], SWITCH, FUSED),
    (
        &["-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"],
        No,
        CACHE,
    ),
    (&["--swa-full"], No, CACHE),
    (&["-dt", "--defrag-thold"], One, CACHE),
    (
        &["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"],
        One,
        CACHE,
    ),
    (&["-cms", "--checkpoint-min-step"], One, CACHE),
    (
        &["-cb", "--cont-batching", "-nocb", "--no-cont-batching"],
        No,
        CACHE,
    ),
    (
        &["-tb", "--threads-batch", "-Cb", "--cpu-mask-batch"],
        One,
        THREADS,
    ),
    (
        &["-Crb", "--cpu-range-batch", "--cpu-strict-batch"],
        One,
        THREADS,
    ),
    (&["--prio-batch", "--poll-batch"], One, THREADS),
    (
        &["--repack", "-nr", "--no-repack"],
        No,
        Ignored("weights are always brought into panels; `sluice pack` does it once"),
    ),
    (
        &["-lzm", "--lazy-mode"],
        One,
        Ignored("--load-mode says how weights are read"),
    ),
    (
        &["--check-tensors"],
        No,
        Ignored("what is read is always checked"),
    ),
    (
        &["--warmup", "--no-warmup"],
        No,
        Ignored("there is no run before the first"),
    ),
    (
        &["--perf", "--no-perf", "--show-timings", "--no-show-timings"],
        No,
        SAYS,
    ),
    (&["-co", "--color", "--log-colors"], SWITCH, SAYS),
    (
        &[
            "--log-prefix",
            "--no-log-prefix",
            "--log-timestamps",
            "--no-log-timestamps",
        ],
        No,
        SAYS,
    ),
    (
        &[
            "-v",
            "--verbose",
            "--log-verbose",
            "--log-jsonl",
            "--no-log-jsonl",
        ],
        No,
        SAYS,
    ),
    (&["-lv", "--verbosity", "--log-verbosity"], One, SAYS),
    (&["--log-disable"], No, Refused("-q leaves notes out")),
    (&["--log-prompts-dir"], One, SERVER),
    (
        &["--verbose-prompt", "-ptc", "--print-token-count"],
        No,
        Refused("`sluice tokenize` shows the tokens of a text"),
    ),
    (
        &["-sp", "--special"],
        No,
        Refused("control tokens have no text here"),
    ),
    (
        &["-bf", "--binary-file"],
        One,
        Refused("texts are UTF-8 here: -f FILE"),
    ),
    (
        &["-mli", "--multiline-input"],
        No,
        Refused("a line that ends in \\ goes on in `sluice chat`"),
    ),
    (&["--in-prefix", "--in-suffix"], One, TURNS),
    (&["--in-prefix-bos"], No, TURNS),
    (
        &["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"],
        One,
        Refused("self-extend is not there; a model's own rotary scaling is"),
    ),
    (
        &[
            "--rope-scaling",
            "--rope-scale",
            "--rope-freq-base",
            "--rope-freq-scale",
        ],
        One,
        FILE_SAYS,
    ),
    (
        &["--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor"],
        One,
        FILE_SAYS,
    ),
    (
        &["--yarn-beta-slow", "--yarn-beta-fast", "--override-kv"],
        One,
        FILE_SAYS,
    ),
    (&["--attention"], One, FILE_SAYS),
    (
        &["-mu", "--model-url", "-dr", "--docker-repo"],
        One,
        Refused("models are fetched from Hugging Face: -hf USER/NAME"),
    ),
    (
        &["-cl", "--cache-list"],
        No,
        Refused("fetched models lie in ~/.cache/huggingface/hub"),
    ),
    (
        &[
            "--lora",
            "--lora-scaled",
            "--control-vector",
            "--control-vector-scaled",
        ],
        One,
        ADAPTERS,
    ),
    (&["--control-vector-layer-range"], One, ADAPTERS),
    (
        &[
            "-mm",
            "--mmproj",
            "-mmu",
            "--mmproj-url",
            "--image",
            "--audio",
            "--video",
        ],
        One,
        MEDIA,
    ),
    (
        &["--mmproj-auto", "--no-mmproj", "--no-mmproj-auto"],
        No,
        Ignored("there are no projectors here"),
    ),
    (&["--mmproj-offload", "--no-mmproj-offload"], No, GPU),
    (
        &[
            "-md",
            "--model-draft",
            "--spec-draft-model",
            "-hfd",
            "-hfrd",
            "--hf-repo-draft",
        ],
        One,
        SPECULATION,
    ),
    (
        &[
            "--spec-draft-hf",
            "-td",
            "--threads-draft",
            "-tbd",
            "--threads-batch-draft",
        ],
        One,
        SPECULATION,
    ),
    (
        &[
            "-ngld",
            "--gpu-layers-draft",
            "--n-gpu-layers-draft",
            "-devd",
        ],
        One,
        SPECULATION,
    ),
    (
        &["--device-draft", "-ctkd", "--cache-type-k-draft", "-ctvd"],
        One,
        SPECULATION,
    ),
    (
        &["--cache-type-v-draft", "-otd", "--override-tensor-draft"],
        One,
        SPECULATION,
    ),
    (
        &[
            "-ncmoed",
            "--n-cpu-moe-draft",
            "--draft",
            "--draft-n",
            "--draft-max",
        ],
        One,
        SPECULATION,
    ),
    (
        &[
            "--draft-min",
            "--draft-n-min",
            "--draft-p-min",
            "--draft-p-split",
        ],
        One,
        SPECULATION,
    ),
    (
        &["--spec-type", "--spec-draft-n-max", "--spec-draft-n-min"],
        One,
        SPECULATION,
    ),
    (
        &[
            "-lcs",
            "--lookup-cache-static",
            "-lcd",
            "--lookup-cache-dynamic",
        ],
        One,
        SPECULATION,
    ),
    (
        &["-cmoed", "--cpu-moe-draft", "--spec-default"],
        No,
        SPECULATION,
    ),
    (
        &["-np", "--parallel", "-ns", "--sequences"],
        One,
        Refused("one text at a time; `sluice bench -npl N` measures several side by side"),
    ),
    (
        &[
            "--host",
            "--port",
            "--path",
            "--api-prefix",
            "--api-key",
            "--api-key-file",
        ],
        One,
        SERVER,
    ),
    (
        &[
            "-a",
            "--alias",
            "--tags",
            "-to",
            "--timeout",
            "--threads-http",
        ],
        One,
        SERVER,
    ),
    (
        &[
            "--ssl-key-file",
            "--ssl-cert-file",
            "--slot-save-path",
            "--media-path",
        ],
        One,
        SERVER,
    ),
    (
        &[
            "--models-dir",
            "--models-preset",
            "--models-max",
            "--cache-reuse",
        ],
        One,
        SERVER,
    ),
    (
        &["-sps", "--slot-prompt-similarity", "-cram", "--cache-ram"],
        One,
        SERVER,
    ),
    (
        &[
            "--sse-ping-interval",
            "--sleep-idle-seconds",
            "--server-base",
        ],
        One,
        SERVER,
    ),
    (
        &[
            "--metrics",
            "--props",
            "--slots",
            "--no-slots",
            "--cache-prompt",
        ],
        No,
        SERVER,
    ),
    (
        &[
            "--no-cache-prompt",
            "--embedding",
            "--embeddings",
            "--rerank",
            "--reranking",
        ],
        No,
        SERVER,
    ),
    (
        &["--ui", "--webui", "--no-ui", "--no-webui", "--reuse-port"],
        No,
        SERVER,
    ),
    (
        &[
            "--reasoning-format",
            "--reasoning-budget",
            "--reasoning-effort",
        ],
        One,
        THINKING,
    ),
    (&["--reasoning-budget-message"], One, THINKING),
    (&["-rea", "--reasoning"], SWITCH, THINKING),
    (
        &["--reasoning-preserve", "--no-reasoning-preserve"],
        No,
        THINKING,
    ),
    (
        &["--hellaswag", "--winogrande", "--multiple-choice"],
        No,
        SCORES,
    ),
    (
        &[
            "--hellaswag-tasks",
            "--winogrande-tasks",
            "--multiple-choice-tasks",
        ],
        One,
        SCORES,
    ),
    (&["--ppl-stride", "--ppl-output-type"], One, SCORES),
    (
        &["-ofreq", "--output-frequency", "--save-frequency"],
        One,
        Refused("an importance matrix is written once, when it is complete"),
    ),
    (
        &[
            "-lr",
            "--learning-rate",
            "-epochs",
            "--epochs",
            "-opt",
            "--optimizer",
        ],
        One,
        TRAINING,
    ),
    (
        &["-wd", "--weight-decay", "-val-split", "--val-split"],
        One,
        TRAINING,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(args: &[&str]) -> Result<(bool, Vec<OsString>), String> {
        let mut rest = args[1..].iter().map(OsString::from).peekable();
        let known = settle(OsStr::new(args[0]), &mut rest);
        known
            .map(|known| (known, rest.collect()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_go_with_their_values() {
        assert_eq!(settled(&["-ngl", "99", "x"]), Ok((true, vec!["x".into()])));
        assert_eq!(settled(&["-fa", "on", "x"]), Ok((true, vec!["x".into()])));
        assert_eq!(settled(&["-fa", "x"]), Ok((true, vec!["x".into()])));
        assert_eq!(
            settled(&["--n-gpu-layers=3", "x"]),
            Ok((true, vec!["x".into()]))
        );
        assert_eq!(settled(&["-nkvo", "x"]), Ok((true, vec!["x".into()])));
        assert_eq!(settled(&["-xyz", "x"]), Ok((false, vec!["x".into()])));
        let refused = settled(&["-md", "draft.gguf"]).unwrap_err();
        assert!(
            refused.contains("-md draft.gguf: speculative decoding"),
            "{refused}"
        );
    }

    #[test]
    fn each_flag_stands_once() {
        let mut flags: Vec<_> = TABLE.iter().flat_map(|(flags, ..)| *flags).collect();
        let count = flags.len();
        flags.sort_unstable();
        flags.dedup();
        assert_eq!(flags.len(), count);
        assert!(flags.iter().all(|flag| flag.starts_with('-')));
    }
}
