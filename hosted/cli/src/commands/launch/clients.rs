//! The programs that can be launched, and what makes each of them use a server.

use clap::ValueEnum;
use serde_json::{Value, json};

/// A program that works with a language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Client {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
    /// OpenCode
    #[value(name = "opencode")]
    OpenCode,
    /// goose
    Goose,
}

/// The server that a client uses.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// `http://HOST:PORT`, without a slash at its end.
    pub(super) url: String,
    /// The model's name in requests.
    pub(super) model: String,
    /// The tokens of its context, if that is known.
    pub(super) n_ctx: Option<u64>,
    /// The server's key.
    pub(super) key: Option<String>,
}

/// What a client is run with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Setting {
    /// Variables that are set.
    pub(super) set: Vec<(&'static str, String)>,
    /// Variables that are removed.
    pub(super) removed: &'static [&'static str],
    /// Arguments before the user's own.
    pub(super) args: Vec<String>,
}

impl Client {
    /// The name of the program.
    pub(super) const fn program(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::OpenCode => "opencode",
            Self::Goose => "goose",
        }
    }

    /// What installs it.
    pub(super) const fn install(self) -> &'static str {
        match self {
            Self::Claude => "npm install -g @anthropic-ai/claude-code",
            Self::Codex => "npm install -g @openai/codex",
            Self::OpenCode => "npm install -g opencode-ai",
            Self::Goose => "see https://goose-docs.ai/docs/getting-started/installation",
        }
    }

    /// The tokens of its first prompt, rounded up, with room for a few turns.
    pub(super) const fn n_ctx_min(self) -> u64 {
        match self {
            Self::Claude => 32_768,
            Self::Codex | Self::OpenCode => 16_384,
            Self::Goose => 8_192,
        }
    }

    /// What makes it use `target`.
    pub(super) fn setting(self, target: &Target) -> Setting {
        match self {
            Self::Claude => claude(target),
            Self::Codex => codex(target),
            Self::OpenCode => opencode(target),
            Self::Goose => goose(target),
        }
    }
}

impl Target {
    /// The key, or a word for clients that want one.
    fn key(&self) -> String {
        self.key.clone().unwrap_or_else(|| "none".to_owned())
    }
}

/// Source: "Claude Code settings" and "LLM gateway configuration" of its documentation.
fn claude(target: &Target) -> Setting {
    let model = || target.model.clone();
    let mut set = vec![
        ("ANTHROPIC_BASE_URL", target.url.clone()),
        ("ANTHROPIC_AUTH_TOKEN", target.key()),
        ("ANTHROPIC_MODEL", model()),
        ("ANTHROPIC_DEFAULT_OPUS_MODEL", model()),
        ("ANTHROPIC_DEFAULT_SONNET_MODEL", model()),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", model()),
        ("CLAUDE_CODE_SUBAGENT_MODEL", model()),
        // No telemetry, error reports, updates and feedback.
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
        // The line that changes with every request, which the server leaves out anyway.
        ("CLAUDE_CODE_ATTRIBUTION_HEADER", "0".to_owned()),
        // Long prompts take minutes on a CPU.
        ("API_TIMEOUT_MS", "3600000".to_owned()),
    ];
    if let Some(n_ctx) = target.n_ctx {
        set.push(("CLAUDE_CODE_AUTO_COMPACT_WINDOW", n_ctx.to_string()));
        let max = (n_ctx / 4).clamp(1024, 32_000);
        set.push(("CLAUDE_CODE_MAX_OUTPUT_TOKENS", max.to_string()));
    }
    Setting {
        set,
        // They would be used instead.
        removed: &[
            "ANTHROPIC_API_KEY",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
            "CLAUDE_CODE_USE_FOUNDRY",
        ],
        args: Vec::new(),
    }
}

/// Source: "Configuration reference" of its documentation. What `-c` sets holds for this run only.
fn codex(target: &Target) -> Setting {
    let text = |text: &str| Value::from(text).to_string();
    let provider = format!(
        "{{name = \"Sluice\", base_url = {}, env_key = \"SLUICE_API_KEY\", wire_api = \"responses\", \
         stream_idle_timeout_ms = 3600000}}",
        text(&format!("{}/v1", target.url))
    );
    let mut settings = vec![
        ("model", text(&target.model)),
        ("model_provider", text("sluice")),
        ("model_providers.sluice", provider),
        ("check_for_update_on_startup", "false".to_owned()),
        ("analytics.enabled", "false".to_owned()),
        ("feedback.enabled", "false".to_owned()),
        ("web_search", text("disabled")),
    ];
    if let Some(n_ctx) = target.n_ctx {
        settings.push(("model_context_window", n_ctx.to_string()));
    }
    let args = settings
        .into_iter()
        .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]);
    Setting {
        set: vec![("SLUICE_API_KEY", target.key())],
        removed: &[],
        args: args.collect(),
    }
}

/// Source: "Config" and "Providers" of its documentation. The content is merged over the user's files.
fn opencode(target: &Target) -> Setting {
    let mut model = json!({"name": target.model, "tool_call": true});
    if let Some(n_ctx) = target.n_ctx {
        model["limit"] = json!({"context": n_ctx, "output": (n_ctx / 4).clamp(1024, 32_000)});
    }
    let name = format!("sluice/{}", target.model);
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "model": name,
        "small_model": name,
        "autoupdate": false,
        "share": "disabled",
        "provider": {"sluice": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Sluice",
            "options": {"baseURL": format!("{}/v1", target.url), "apiKey": target.key(), "timeout": false},
            "models": {target.model.clone(): model},
        }},
    });
    let on = || "1".to_owned();
    Setting {
        set: vec![
            ("OPENCODE_CONFIG_CONTENT", config.to_string()),
            ("OPENCODE_DISABLE_AUTOUPDATE", on()),
            ("OPENCODE_DISABLE_MODELS_FETCH", on()),
        ],
        removed: &[],
        args: Vec::new(),
    }
}

/// Source: "Environment variables" of its documentation.
fn goose(target: &Target) -> Setting {
    let mut set = vec![
        ("GOOSE_PROVIDER", "openai".to_owned()),
        ("GOOSE_MODEL", target.model.clone()),
        ("OPENAI_HOST", target.url.clone()),
        ("OPENAI_BASE_PATH", "v1/chat/completions".to_owned()),
        ("OPENAI_API_KEY", target.key()),
        ("OPENAI_TIMEOUT", "3600".to_owned()),
        ("GOOSE_TELEMETRY_ENABLED", "false".to_owned()),
    ];
    if let Some(n_ctx) = target.n_ctx {
        set.push(("GOOSE_CONTEXT_LIMIT", n_ctx.to_string()));
    }
    Setting {
        set,
        removed: &["OPENAI_BASE_URL", "OPENAI_ORGANIZATION", "OPENAI_PROJECT"],
        args: Vec::new(),
    }
}
