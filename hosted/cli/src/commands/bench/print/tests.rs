use super::super::plan::Setting;
use super::*;
use serde_json::Value;
use sluice::core::kernels::KvType;

/// The header that `llama-bench -p 32 -n 8 -r 2 -t 1 -o csv` prints (ggml 0.25.3).
const LLAMA_BENCH_CSV: &str = "build_commit,build_number,cpu_info,gpu_info,backends,\
    model_filename,model_type,model_size,model_n_params,n_batch,n_ubatch,n_threads,cpu_mask,\
    cpu_strict,poll,type_k,type_v,n_gpu_layers,n_cpu_moe,split_mode,main_gpu,no_kv_offload,\
    flash_attn,devices,tensor_split,tensor_buft_overrides,load_mode,lazy_mode,embeddings,\
    no_op_offload,no_host,repack,fit_target,fit_min_ctx,n_prompt,n_gen,n_depth,test_time,\
    avg_ns,stddev_ns,avg_ts,stddev_ts";

/// A row of its JSON Lines output, for a prompt of 32 tokens.
const LLAMA_BENCH_JSONL: &str = r#"{"build_commit": "0c1e570", "build_number": 1, "cpu_info": "Intel(R) Xeon(R) Processor", "gpu_info": "", "backends": "CPU", "model_filename": "tale.gguf", "model_type": "llama ?B Q4_K - Medium", "model_size": 3645952, "model_n_params": 5770496, "n_batch": 2048, "n_ubatch": 512, "n_threads": 1, "cpu_mask": "0x0", "cpu_strict": false, "poll": 50, "type_k": "f16", "type_v": "f16", "n_gpu_layers": -1, "n_cpu_moe": 0, "split_mode": "layer", "main_gpu": 0, "no_kv_offload": false, "flash_attn": -1, "devices": "auto", "tensor_split": "0.00", "tensor_buft_overrides": "none", "load_mode": "auto", "lazy_mode": "auto", "embeddings": false, "no_op_offload": 0, "no_host": false, "repack": true, "fit_target": 0, "fit_min_ctx": 0, "n_prompt": 32, "n_gen": 0, "n_depth": 0, "test_time": "2026-11-21T22:54:20Z", "avg_ns": 12145095, "stddev_ns": 2804836, "avg_ts": 2706.997184, "stddev_ts": 625.163586, "samples_ns": [ 10161780, 14128411 ],"samples_ts": [ 3149.05, 2264.94 ]}"#;

/// The header of its table.
const LLAMA_BENCH_MD: [&str; 2] = [
    "| model                          |       size |     params | backend    | threads \
     |            test |                  t/s |",
    "| ------------------------------ | ---------: | ---------: | ---------- | ------: \
     | --------------: | -------------------: |",
];

fn row() -> Row {
    Row::example()
}

#[test]
fn the_table_begins_with_llama_benchs_columns() {
    let mut printer = Printer::new(Format::Md, &[row().test]);
    let header = printer.header();
    for (found, theirs) in header.lines().zip(LLAMA_BENCH_MD) {
        assert!(found.starts_with(theirs), "{found}\n{theirs}");
    }
    let line = printer.row(&row());
    assert_eq!(
        line.matches('|').count(),
        header.lines().next().unwrap().matches('|').count()
    );
    assert!(line.contains(" pp32 |"), "{line}");
    let rate = line.split('|').nth(7).unwrap();
    assert_eq!(rate.chars().count(), 22, "{rate:?}");
    assert!(rate.contains(" ± "), "{rate:?}");
    assert!(printer.footer().starts_with("\nbuild: "));
}

#[test]
fn csv_and_sql_begin_with_llama_benchs_fields() {
    let mut printer = Printer::new(Format::Csv, &[row().test]);
    let header = printer.header();
    assert!(header.starts_with(LLAMA_BENCH_CSV), "{header}");
    let mut hostile = row();
    hostile.model.filename = "a\"b,c'd\n".into();
    let line = printer.row(&hostile);
    assert!(line.contains("\"a\"\"b,c'd\n\""), "{line}");

    let mut printer = Printer::new(Format::Sql, &[row().test]);
    let header = printer.header();
    for expected in [
        "CREATE TABLE IF NOT EXISTS llama_bench (\n  build_commit TEXT,\n  build_number INTEGER,\n",
        "  no_kv_offload INTEGER,\n",
        "  avg_ts REAL,\n",
    ] {
        assert!(header.contains(expected), "{header}");
    }
    assert!(header.ends_with("\n);\n\n"));
    let line = printer.row(&hostile);
    let names = LLAMA_BENCH_CSV.replace(',', ", ");
    let start = format!("INSERT INTO llama_bench ({names}, ");
    assert!(line.starts_with(&start), "{line}");
    assert!(line.contains("'a\"b,c''d\n'"), "{line}");
}

/// Field names in order, with the kinds of their values.
fn shape(value: &Value) -> Vec<(String, &'static str)> {
    let kind = |value: &Value| match value {
        Value::String(_) => "text",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::Array(_) => "list",
        _ => "other",
    };
    let object = value.as_object().expect("an object");
    object.iter().map(|(k, v)| (k.clone(), kind(v))).collect()
}

#[test]
fn json_has_llama_benchs_shape_first() {
    let theirs = shape(&serde_json::from_str(LLAMA_BENCH_JSONL).unwrap());
    let mut printer = Printer::new(Format::Jsonl, &[row().test]);
    let mut hostile = row();
    hostile.model.filename = "a\"b\\c\u{1}".into();
    let line = printer.row(&hostile);
    assert_eq!(line.lines().count(), 1);
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["model_filename"], "a\"b\\c\u{1}");
    let found = shape(&value);
    assert_eq!(found[..theirs.len()], theirs);

    let mut printer = Printer::new(Format::Json, &[row().test]);
    let mut text = printer.header();
    text += &printer.row(&row());
    text += &printer.row(&row());
    text += &printer.footer();
    let all: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 2);
    assert_eq!(shape(&all[0]), found);
}

#[test]
fn no_rows_are_still_a_document() {
    let printer = Printer::new(Format::Json, &[row().test]);
    let text = printer.header() + &printer.footer();
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap(),
        serde_json::json!([])
    );
}

#[test]
fn settings_show_where_they_vary() {
    let other = Test {
        setting: Setting {
            kv: (KvType::BF16, KvType::BF16),
            n_ubatch: 64,
            ..row().test.setting
        },
        ..row().test
    };
    let header = Printer::new(Format::Md, &[row().test, other]).header();
    for name in [" n_ubatch |", " type_k |", " type_v |"] {
        assert!(header.contains(name), "{header}");
    }
    assert!(!header.contains("n_batch |") || header.contains("n_ubatch |"));
}

#[test]
fn a_row_above_the_limit_is_a_failed_probe() {
    let mut fast = row();
    fast.limit_ns = 1e12;
    assert_eq!(fast.limit_percent(), None);
    let mut printer = Printer::new(Format::Md, &[fast.test]);
    assert!(printer.row(&fast).contains("probe failed"));
    let mut printer = Printer::new(Format::Jsonl, &[fast.test]);
    let value: Value = serde_json::from_str(&printer.row(&fast)).unwrap();
    assert_eq!(value["probe"], "failed");
}
