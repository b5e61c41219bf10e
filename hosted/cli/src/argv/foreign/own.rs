//! What becomes of llama.cpp's flags where one program alone has them, or has them with a value.

use super::Fate::{self, Ignored, Refused};
use super::Value::{No, One};
use super::table::{GPU, MEDIA, Row};

const PAGE: Fate = Ignored("there is no page here");
const PREFIXES: Fate = Ignored("what prompts have in common is always found, in all of them");

/// By program.
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
                Ignored("weights are always brought into panels; `sluice pack` does it once"),
            ),
            (
                "-mmp --mmap -dio --direct-io",
                One,
                Refused("-lm none reads the file, -lm mmap maps it"),
            ),
            (
                "-embd --embeddings",
                One,
                Refused("`sluice bench` measures prompts and generation"),
            ),
            ("-rpc", One, Refused("a model runs on one machine")),
        ],
    ),
    (
        "gguf-split",
        &[(
            "--delete-splits",
            No,
            Refused("nothing that is read is removed: remove the parts when the file is there"),
        )],
    ),
    (
        "serve",
        &[
            (
                "--path --ui-config --webui-config --ui-config-file --webui-config-file",
                One,
                PAGE,
            ),
            (
                "--ui --webui --no-ui --no-webui --ui-mcp-proxy --webui-mcp-proxy \
                 --no-ui-mcp-proxy --no-webui-mcp-proxy",
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
                Refused("--cache-ram 0 keeps nothing; a request says \"cache_prompt\": false"),
            ),
            (
                "--embedding --embeddings",
                No,
                Ignored("every model gives embeddings"),
            ),
            (
                "--rerank --reranking",
                No,
                Refused("heads for ranking are not supported yet"),
            ),
            (
                "--props",
                No,
                Refused("properties are set on the command line"),
            ),
            (
                "--api-prefix",
                One,
                Refused("routes have no prefix; a proxy can add one"),
            ),
            (
                "--ssl-key-file --ssl-cert-file",
                One,
                Refused("there is no TLS here; put a proxy before the server"),
            ),
            ("--tags", One, Ignored("nothing shows them")),
            ("--media-path", One, MEDIA),
            (
                "--models-preset",
                One,
                Refused("flags are the same for all models"),
            ),
            (
                "--sleep-idle-seconds",
                One,
                Refused("a model leaves when another needs its place (--models-max)"),
            ),
            (
                "--models-autoload",
                No,
                Ignored("models are loaded when a request names them"),
            ),
            (
                "--no-models-autoload",
                No,
                Refused("models are loaded when a request names them"),
            ),
            (
                "--prefill-assistant --no-prefill-assistant",
                No,
                Refused("a request says \"continue_final_message\": true"),
            ),
            (
                "--log-prompts-dir",
                One,
                Refused("--log-prompts writes prompts to the log"),
            ),
            (
                "--cors-methods --cors-headers --server-base",
                One,
                Refused("only --cors-origins can be chosen"),
            ),
            (
                "--reuse-port --cors-credentials --no-cors-credentials \
                 --skip-chat-parsing --no-skip-chat-parsing",
                No,
                Refused("this is not supported"),
            ),
            (
                "--spm-infill",
                No,
                Refused("what comes before goes before what comes after"),
            ),
        ],
    ),
    (
        "quantize",
        &[
            (
                "--prune-layers",
                One,
                Refused("layers cannot be taken out of a model"),
            ),
            (
                "--keep-split",
                No,
                Refused("what is written is one file; `sluice gguf-split` splits it"),
            ),
            (
                "--max-buffer-size",
                One,
                Ignored("weights are read and written a piece at a time"),
            ),
        ],
    ),
];
