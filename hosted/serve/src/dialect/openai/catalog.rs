//! The list `models` next to `data`: entries of llama-server, in which Codex finds what it reads of a model.
//!
//! Sources: llama-server's reply; `ModelInfo` of Codex 0.171, which asks for the list where its provider has a command
//! for the key.

use super::super::seam::ModelInfo;
use serde_json::{Value, json};

/// The entry of a model, or of an adapter.
pub(super) fn entry(info: &ModelInfo<'_>) -> Value {
    let embeds = info.loaded.is_some_and(|loaded| loaded.model().embeds());
    let capability = if embeds { "embedding" } else { "completion" };
    let mut entry = json!({
        "name": info.name,
        "model": info.name,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": [capability],
        "parameters": "",
        "details": {
            "parent_model": info.base.unwrap_or_default(),
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": "",
            "quantization_level": "",
        },
    });
    let visibility = if embeds { "hide" } else { "list" };
    let context_window = info.loaded.map(|loaded| loaded.n_ctx());
    let codex = json!({
        "slug": info.name,
        "display_name": info.name,
        "base_instructions": CODEX_INSTRUCTIONS,
        "supported_reasoning_levels": [],
        "supports_reasoning_summaries": true,
        "support_verbosity": false,
        "default_verbosity": null,
        "shell_type": "shell_command",
        "apply_patch_tool_type": "freeform",
        "supports_parallel_tool_calls": true,
        "experimental_supported_tools": [],
        "truncation_policy": {"mode": "bytes", "limit": 10_000},
        "context_window": context_window,
        "input_modalities": ["text"],
        "visibility": visibility,
        "supported_in_api": true,
        "priority": 0,
        "availability_nux": null,
        "upgrade": null,
    });
    if let (Value::Object(entry), Value::Object(codex)) = (&mut entry, codex) {
        entry.extend(codex);
    }
    entry
}

/// Codex has no instructions of its own for models of this list.
const CODEX_INSTRUCTIONS: &str = "You are a coding agent. You work in the user's folder with the tools that you are given, \
     until the task is done.\n\
     - Read files before you change them, and search with rg where it is installed.\n\
     - Change files with apply_patch, with no more than the task needs, and in the style of the code around.\n\
     - Keep to the instructions of AGENTS.md files; deeper ones count for their folders.\n\
     - Do not commit, and do not undo changes that you did not make, unless the user asks for it.\n\
     - Run the tests that cover your change. Say plainly what you could not check.\n\
     Before each group of tool calls, say in one sentence what you will do. At the end, say briefly what you changed, with the \
     paths of the files.";
