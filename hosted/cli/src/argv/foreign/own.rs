//! Flags that only one of llama.cpp's programs has, or that take a value only there.

use super::Fate::{self, Ignored, Refused};
use super::Value::{No, One};
use super::table::{GPU, MEDIA, Row};

const PAGE: Fate = Ignored("the page at / has no settings on the server");
const PREFIXES: Fate = Ignored("common prefixes of prompts are always found and reused");

/// The rows of each program.
pub(super) const OWN: &[(&str, &[Row])] = &[
    (
        "bench",
        &[
            (
                "-nkvo --no-kv-offload -nopo --no-op-offload --no-host",
                One,
                GPU,
            ),
            (
                "--repack",
                One,
                Ignored("weights are always repacked into panels; `sluice pack` does so once"),
            ),
            (
                "-mmp --mmap -dio --direct-io",
                One,
                Refused("use -lm none to read the file or -lm mmap to map it"),
            ),
            (
                "-embd --embeddings",
                One,
                Refused("`sluice bench` measures prompts and generation only"),
            ),
            (
                "-rpc",
                One,
                Refused("running a model on several machines is not supported"),
            ),
        ],
    ),
    (
        "gguf-split",
        &[(
            "--delete-splits",
            No,
            Refused("input files are never deleted; delete the parts once the merged file exists"),
        )],
    ),
    (
        "serve",
        &[
            (
                "--ui-config --webui-config --ui-config-file --webui-config-file",
                One,
                PAGE,
            ),
            ("--path", One, Ignored("the page at / is built in")),
            (
                "--ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy",
                No,
                PAGE,
            ),
            ("--cache-reuse -sps --slot-prompt-similarity", One, PREFIXES),
            (
                "--cache-prompt --cache-idle-slots --no-cache-idle-slots",
                No,
                PREFIXES,
            ),
            (
                "--no-cache-prompt",
                No,
                Refused("use --cache-ram 0, or \"cache_prompt\": false in a request"),
            ),
            (
                "--embedding --embeddings",
                No,
                Ignored("every model computes embeddings"),
            ),
            (
                "--rerank --reranking",
                No,
                Ignored("models with a ranking head always serve reranking"),
            ),
            ("--props", No, Refused("set properties on the command line")),
            (
                "--api-prefix",
                One,
                Refused("routes have no prefix; add one with a proxy"),
            ),
            (
                "--ssl-key-file --ssl-cert-file",
                One,
                Refused("TLS is not supported; put the server behind a proxy"),
            ),
            ("--tags", One, Ignored("tags are not shown anywhere")),
            ("--media-path", One, MEDIA),
            (
                "--prefill-assistant --no-prefill-assistant",
                No,
                Refused("set \"continue_final_message\": true in a request"),
            ),
            (
                "--log-prompts-dir",
                One,
                Refused("use --log-prompts to write prompts to the log"),
            ),
            (
                "--cors-methods --cors-headers --server-base",
                One,
                Refused("only the origins can be set (--cors-origins)"),
            ),
            (
                "--reuse-port --cors-credentials --no-cors-credentials \
                 --skip-chat-parsing --no-skip-chat-parsing",
                No,
                Refused("not supported"),
            ),
            (
                "--spm-infill",
                No,
                Refused("the prefix always precedes the suffix"),
            ),
            (
                "--no-jinja",
                No,
                Refused(
                    "chat templates are always Jinja; use --chat-template chatml for a plain one",
                ),
            ),
            (
                "--reasoning-effort",
                One,
                Refused("use --chat-template-kwargs '{\"reasoning_effort\": \"low\"}'"),
            ),
            (
                "--reasoning-budget-message",
                One,
                Refused("reasoning that exceeds --reasoning-budget ends with the model's own mark"),
            ),
            (
                "--reasoning-preserve --no-reasoning-preserve",
                No,
                Refused("the chat template decides which reasoning stays in the prompt"),
            ),
        ],
    ),
    (
        "quantize",
        &[
            (
                "--prune-layers",
                One,
                Refused("removing layers is not supported"),
            ),
            (
                "--keep-split",
                No,
                Refused("the output is one file; split it with `sluice gguf-split`"),
            ),
            (
                "--max-buffer-size",
                One,
                Ignored("weights are read and written one piece at a time"),
            ),
        ],
    ),
];
