//! llama.cpp's flags that a command here does not have, and how each is handled.
//!
//! Source: the flags in llama.cpp's `common/arg.cpp` (as of llama-cpp-python 0.3.36), and some that
//! were removed from it.

use super::Fate::{self, Ignored, Refused};
use super::Value::{self, Maybe, No, One};

const SWITCH: Value = Maybe(&["on", "off", "auto", "0", "1", "true", "false"]);

pub(super) const GPU: Fate = Ignored("GPUs are not supported; everything runs on the CPU");
const FUSED: Fate = Ignored("attention is always fused");
const CACHE: Fate = Ignored("all sequences share one paged KV cache");
const THREADS: Fate = Ignored("prompts and generation use the same threads (-t, -C, -Cr)");
const SAYS: Fate = Ignored("notes are written to stderr as they are; -q omits them");
const FILE_SAYS: Fate = Refused(
    "the model file defines it; `sluice quantize --override-kv` writes a file with another value",
);
const SERVER: Fate = Refused("use `sluice serve`");
const SPECULATION: Fate = Refused("this command generates no text that could be drafted");
const DRAFT_PLACE: Fate = Ignored("a draft model runs on the model's cores (-td sets how many)");
const DRAFTERS: Fate = Refused("use --spec-type: ngram, draft-simple, draft-mtp or draft-self");
const ADAPTERS: Fate = Refused("this command does not use adapters");
const CONTROL: Fate = Refused("control vectors are not supported");
pub(super) const MEDIA: Fate = Refused("images, audio and video are not supported");
const TRAINING: Fate = Refused("training is not supported");
const SCORES: Fate = Refused("only perplexity and KL divergence are supported");
const TURNS: Fate = Refused("the model's chat template defines what surrounds a message");
const THINKING: Fate = Refused("reasoning is part of the answer here");

const TOOLS: Fate = Refused("running tools is not supported");
const BATCHED: Fate = Refused("use `sluice bench -npl N` to measure parallel sequences");
const DIFFUSION: Fate = Refused("diffusion models are not supported");

/// Space-separated flags, whether they take a value, and how they are handled.
pub(super) type Row = (&'static str, Value, Fate);

/// Flags of all programs.
pub(super) const TABLE: &[Row] = &[
    (
        "-ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg \
         --main-gpu -dev --device -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -ot \
         --override-tensor -fitt --fit-target -fitc --fit-ctx --mmproj-device",
        One,
        GPU,
    ),
    ("-fit --fit -fitp --fit-print", SWITCH, GPU),
    (
        "-kvo --kv-offload -nkvo --no-kv-offload -cmoe --cpu-moe --no-host -bs \
         --backend-sampling --op-offload --no-op-offload --mmproj-offload \
         --no-mmproj-offload --low-vram -nommq --no-mul-mat-q -mmq --mul-mat-q",
        No,
        GPU,
    ),
    (
        "--list-devices",
        No,
        Refused("use `sluice doctor` to inspect this machine"),
    ),
    (
        "--rpc",
        One,
        Refused("running a model on several machines is not supported"),
    ),
    ("-fa --flash-attn", SWITCH, FUSED),
    (
        "-kvu --kv-unified -no-kvu --no-kv-unified --swa-full -cb --cont-batching -nocb \
         --no-cont-batching",
        No,
        CACHE,
    ),
    (
        "-dt --defrag-thold -ctxcp --ctx-checkpoints --swa-checkpoints -cms \
         --checkpoint-min-step --kv-unified-per-slot",
        One,
        CACHE,
    ),
    (
        "-tb --threads-batch -Cb --cpu-mask-batch -Crb --cpu-range-batch \
         --cpu-strict-batch --prio-batch --poll-batch",
        One,
        THREADS,
    ),
    (
        "--repack -nr --no-repack",
        No,
        Ignored("weights are always repacked into panels; `sluice pack` does so once"),
    ),
    (
        "-lzm --lazy-mode",
        One,
        Ignored("use --load-mode to set how weights are read"),
    ),
    (
        "--check-tensors",
        No,
        Refused("use `sluice inspect --check-tensors FILE`"),
    ),
    ("--warmup --no-warmup", No, Ignored("nothing is warmed up")),
    (
        "--perf --no-perf --show-timings --no-show-timings --log-prefix --no-log-prefix \
         --log-timestamps --no-log-timestamps -v --verbose --log-verbose --log-jsonl \
         --no-log-jsonl",
        No,
        SAYS,
    ),
    ("-co --color --log-colors", SWITCH, SAYS),
    ("-lv --verbosity --log-verbosity", One, SAYS),
    (
        "--log-prompts-dir --host --port --path --api-prefix --api-key --api-key-file -a \
         --alias --tags -to --timeout --threads-http --ssl-key-file --ssl-cert-file \
         --slot-save-path --media-path --models-dir --models-preset --models-max \
         --cache-reuse -sps --slot-prompt-similarity -cram --cache-ram \
         --sse-ping-interval --sleep-idle-seconds --server-base --cors-origins \
         --cors-methods --cors-headers --ui-config --webui-config --ui-config-file \
         --webui-config-file",
        One,
        SERVER,
    ),
    (
        "--metrics --props --slots --no-slots --cache-prompt --no-cache-prompt \
         --embedding --embeddings --rerank --reranking --ui --webui --no-ui --no-webui \
         --reuse-port --cache-idle-slots --no-cache-idle-slots --cors-credentials \
         --no-cors-credentials --ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy \
         --no-webui-mcp-proxy --models-autoload --no-models-autoload --skip-chat-parsing \
         --no-skip-chat-parsing --prefill-assistant --no-prefill-assistant",
        No,
        SERVER,
    ),
    (
        "--verbose-prompt -ptc --print-token-count",
        No,
        Ignored("use `sluice tokenize` to see the tokens of a text"),
    ),
    (
        "-sp --special",
        No,
        Refused("control tokens are never printed as text"),
    ),
    (
        "-bf --binary-file",
        One,
        Refused("prompts are UTF-8 text; use -f FILE"),
    ),
    (
        "-mli --multiline-input",
        No,
        Refused("end a line with \\ to continue it in `sluice chat`"),
    ),
    ("--in-prefix --in-suffix", One, TURNS),
    ("--in-prefix-bos", No, TURNS),
    (
        "-gan --grp-attn-n -gaw --grp-attn-w",
        One,
        Refused("self-extend is not supported; the model's own RoPE scaling is applied"),
    ),
    (
        "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx \
         --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast \
         --override-kv --attention -gqa --gqa -eps --rms-norm-eps",
        One,
        FILE_SAYS,
    ),
    (
        "-mu --model-url -dr --docker-repo",
        One,
        Refused("models are downloaded from Hugging Face only; use -hf USER/NAME"),
    ),
    (
        "-cl --cache-list",
        No,
        Refused("downloaded models are in ~/.cache/huggingface/hub"),
    ),
    ("--lora --lora-scaled", One, ADAPTERS),
    ("--lora-init-without-apply", No, ADAPTERS),
    (
        "--control-vector --control-vector-scaled --control-vector-layer-range",
        One,
        CONTROL,
    ),
    (
        "-mm --mmproj -mmu --mmproj-url --image --audio --video --image-min-tokens \
         --image-max-tokens --mtmd-batch-max-tokens --video-fps \
         --video-timestamp-interval --video-ffmpeg-dir --tts-lang --tts-speaker-file",
        One,
        MEDIA,
    ),
    (
        "--mmproj-auto --no-mmproj --no-mmproj-auto",
        No,
        Ignored("multimodal projectors are not supported"),
    ),
    (
        "-md --model-draft --spec-draft-model -td --threads-draft --spec-draft-threads -cd \
         --ctx-size-draft -ctkd --cache-type-k-draft --spec-draft-type-k -ctvd \
         --cache-type-v-draft --spec-draft-type-v --draft --draft-n --draft-max --draft-min \
         --draft-n-min --draft-p-min --spec-type --spec-draft-n-max --spec-draft-n-min \
         --spec-draft-p-min",
        One,
        SPECULATION,
    ),
    (
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
        One,
        Refused("download the model with `sluice pull`, then use -md FILE"),
    ),
    (
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl -devd --device-draft \
         --spec-draft-device -otd --override-tensor-draft --spec-draft-override-tensor -ncmoed \
         --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe",
        One,
        GPU,
    ),
    (
        "-cmoed --cpu-moe-draft --spec-draft-cpu-moe --spec-draft-backend-sampling \
         --no-spec-draft-backend-sampling",
        No,
        GPU,
    ),
    (
        "-tbd --threads-batch-draft --spec-draft-threads-batch",
        One,
        THREADS,
    ),
    (
        "--spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd \
         --cpu-range-draft --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio \
         --prio-draft --spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch -Cbd \
         --cpu-mask-batch-draft --spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft \
         --spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-prio-batch \
         --prio-batch-draft --spec-draft-poll-batch --poll-batch-draft",
        One,
        DRAFT_PLACE,
    ),
    (
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        One,
        Refused("n-grams are learnt while text is generated and are not saved"),
    ),
    (
        "--draft-p-split --spec-draft-p-split --spec-synth-len --spec-synth-rates",
        One,
        Refused("drafts are sequences, not trees"),
    ),
    (
        "--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match \
         --spec-ngram-simple-size-n --spec-ngram-simple-size-m \
         --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m \
         --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n \
         --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --spec-ngram-size-n \
         --spec-ngram-size-m --spec-ngram-min-hits",
        One,
        Ignored(
            "the longest match is used, and the number of draft tokens adapts to measured gains",
        ),
    ),
    (
        "--spec-default",
        No,
        Ignored("--spec-type auto is the default"),
    ),
    ("--mtp --dflash --eagle3", No, DRAFTERS),
    (
        "-np --parallel -ns --sequences",
        One,
        Refused(
            "this command runs one sequence; use `sluice run --prompts FILE -np N` to run several, `sluice bench \
             -npl N` to measure them",
        ),
    ),
    (
        "--reasoning-format --reasoning-budget --reasoning-effort \
         --reasoning-budget-message",
        One,
        THINKING,
    ),
    ("-rea --reasoning", SWITCH, THINKING),
    ("--reasoning-preserve --no-reasoning-preserve", No, THINKING),
    (
        "--hellaswag --winogrande --multiple-choice --check --save-logits",
        No,
        SCORES,
    ),
    (
        "--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks --ppl-stride \
         --ppl-output-type --logits-output-dir --tensor-filter",
        One,
        SCORES,
    ),
    (
        "-ofreq --output-frequency --save-frequency",
        One,
        Refused("the importance matrix is written once, at the end"),
    ),
    (
        "-lr --learning-rate -epochs --epochs -opt --optimizer -wd --weight-decay \
         -val-split --val-split -lr-min --learning-rate-min -decay-epochs \
         --learning-rate-decay-epochs",
        One,
        TRAINING,
    ),
    (
        "--usage --version",
        No,
        Refused("use -h for the flags and `sluice --version` for the version"),
    ),
    (
        "--completion-bash",
        No,
        Refused("use `sluice completions bash`"),
    ),
    (
        "--tools --tools-runtime --mcp-servers-config --mcp-servers-json",
        One,
        TOOLS,
    ),
    ("-ag --agent -no-ag --no-agent", No, TOOLS),
    (
        "--spm-infill",
        No,
        Refused("infilling is not supported yet"),
    ),
    (
        "--adaptive-target --adaptive-decay",
        One,
        Refused("the adaptive-p sampler is not supported yet"),
    ),
    (
        "--context-file --chunk-size --chunk-separator --junk --pos",
        One,
        Refused("searching text is not supported; `sluice embed` computes the vectors"),
    ),
    (
        "--output-format",
        One,
        Refused("only `sluice imatrix` and `rerank` have it; embeddings have --embd-output-format"),
    ),
    (
        "--ppl --no-ppl",
        No,
        Ignored("use `sluice perplexity` to measure perplexity"),
    ),
    (
        "--chunk --from-chunk",
        One,
        Refused("reading always starts at the first chunk; cut the file instead"),
    ),
    (
        "--parse-special",
        No,
        Refused("only `sluice run`, `chat` and `tokenize` parse control tokens in text"),
    ),
    ("-pps -tgs", No, BATCHED),
    ("-npp -ntg", One, BATCHED),
    (
        "--cls-separator",
        One,
        Refused("query and document are joined by the model's own template"),
    ),
    (
        "--positive-file --negative-file --pca-batch --pca-iter --method",
        One,
        Refused("creating control vectors is not supported"),
    ),
    (
        "--diffusion-steps --diffusion-eps --diffusion-algorithm --diffusion-alg-temp \
         --diffusion-block-length --diffusion-cfg-scale --diffusion-add-gumbel-noise",
        One,
        DIFFUSION,
    ),
    ("--diffusion-visual", No, DIFFUSION),
    (
        "--embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default \
         --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec \
         --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default \
         --vision-gemma-4b-default --vision-gemma-12b-default",
        No,
        Refused("name the model: -hf USER/NAME"),
    ),
    (
        "-ins --instruct -cml --chatml",
        No,
        Refused("use `sluice chat`, which applies the model's template"),
    ),
    ("--memory-f32", No, Refused("use -ctk f32 -ctv f32")),
    (
        "--tfs --tfs-z",
        One,
        Refused("tail-free sampling was removed, as in llama.cpp; use --top-p or --min-p"),
    ),
];
