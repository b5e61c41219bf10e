//! `sluice pull`: downloads a model from Hugging Face into the cache.

use crate::flags::hub::{AccessArgs, request, usage};
use crate::outcome::{Ending, UsageError};
use crate::ui::output::TextOutput;
use clap::Args;
use sluice_pull::FileChoice;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice pull ggml-org/gemma-3-1b-it-GGUF
  sluice pull Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_0 --revision main
  sluice pull TinyLlama/TinyLlama-1.1B-Chat-v1.0 --folder

Prints the path of the model's first file, or of the folder. Files are stored as huggingface_hub and
llama.cpp store them, in HF_HUB_CACHE (~/.cache/huggingface/hub). HF_ENDPOINT sets another server,
HTTPS_PROXY and NO_PROXY a proxy, and SSL_CERT_FILE replaces Mozilla's certificates.";

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Repository and quantization: by default Q4_K_M, else Q8_0, else the first one
    #[arg(value_name = "USER/NAME[:QUANT]")]
    repo: String,
    /// Fetch this file or pattern, such as '*Q8_0.gguf' [short: -hff]
    #[arg(
        long = "hf-file",
        visible_alias = "file",
        value_name = "PATH",
        env = "LLAMA_ARG_HF_FILE",
        hide_env_values = true
    )]
    file: Option<String>,
    /// Fetch what `sluice convert` reads: safetensors, tokenizer, configuration
    #[arg(long, conflicts_with = "file")]
    folder: bool,
    /// Set the branch, tag or commit
    #[arg(long, value_name = "NAME", default_value = "main")]
    revision: String,
    #[command(flatten)]
    access: AccessArgs,
}

pub(super) fn pull(args: &PullArgs) -> anyhow::Result<Ending> {
    let request = request(&args.repo)?;
    let mut request = request.at(&args.revision).map_err(usage)?;
    if args.folder {
        if matches!(request.choice, FileChoice::Quant(_)) {
            let message = "--folder downloads a whole model: omit :QUANT";
            return Err(UsageError(message.to_owned()).into());
        }
        request.choice = FileChoice::Folder;
    }
    if let Some(file) = &args.file {
        request.choice = FileChoice::File(file.clone());
    }
    let pulled = args.access.fetch(&request)?;
    let path = match pulled.files.first() {
        Some(first) if !args.folder => first,
        _ => &pulled.folder,
    };
    TextOutput::new().write(&format!("{}\n", path.display()))?;
    Ok(Ending::Done)
}
