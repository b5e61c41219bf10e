//! `sluice sparsify --predictor`, and `--sparse predictor`.

use crate::convert::Folder;
use crate::support::{fails, fixture, run_to};
use serde_json::Value;

/// A model trained with ReLU, and a text.
fn begun(name: &str) -> (Folder, String, String) {
    let folder = Folder::new(name);
    let (model, text) = (folder.path("m.gguf"), folder.path("text.txt"));
    std::fs::copy(fixture("sparse/tale-relu-5.8m-Q8_0.gguf"), &model).expect("a writable folder");
    let story = "Once upon a time, there was a little dog who saw a red ball in the garden. ";
    std::fs::write(&text, story.repeat(60)).expect("a writable folder");
    (folder, model, text)
}

#[test]
fn a_predictor_is_made_found_by_itself_and_belongs_to_its_model() {
    let (folder, model, text) = begun("predictor");
    let make = ["sparsify", "-m", &model, "-f", &text, "-c", "64"];
    let file = folder.path("m.sparse.gguf");
    let mut first = None;
    for threads in ["1", "2"] {
        let how = ["--predictor", "ridge:64", "--overwrite", "-t", threads];
        let made = run_to(0, &[&make[..], &how].concat());
        assert!(made.stdout.contains("recall"), "{made:?}");
        assert!(made.stderr.contains("6 of 6 layers"), "{made:?}");
        let bytes = std::fs::read(&file).unwrap();
        assert!(*first.get_or_insert_with(|| bytes.clone()) == bytes);
    }
    let again = [&make[..], &["--predictor", "svd"]].concat();
    fails(1, &again, &["m.sparse.gguf"]);
    let run = |model: &str, more: &[&str]| {
        let args = ["run", "-m", model, "-p", "Once upon a time", "-n", "24"];
        run_to(0, &[&args[..], &["--temp", "0"], more].concat())
    };
    let predicted = run(&model, &["--sparse", "predictor"]);
    let slc = folder.path("m.slc");
    run_to(0, &["pack", "--ffn", "predicted", &model, &slc]);
    let packed = run(&slc, &["--sparse", "predictor"]);
    assert_eq!(packed.stdout, predicted.stdout);
    assert!(packed.stderr.contains("neurons skipped = "), "{packed:?}");
    assert_eq!(run(&slc, &[]).stdout, run(&model, &[]).stdout);
    let bench = ["bench", "-m", &slc, "--sparse", "predictor", "-r", "1"];
    let test = ["-p", "16", "-n", "4", "-o", "json"];
    let rows = run_to(0, &[&bench[..], &test].concat()).stdout;
    let rows: Value = serde_json::from_str(&rows).unwrap();
    for row in rows.as_array().unwrap() {
        let layers = row["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 6);
        for layer in layers {
            let of = |name: &str| layer[name].as_f64().unwrap();
            // The tokens are random, and no text that the predictor was made from.
            assert!((0.2..1.0).contains(&of("recall")), "{layer}");
            assert!((0.2..1.0).contains(&of("energy_recall")), "{layer}");
            assert!(of("density") < 0.9 && of("ns") > 0.0, "{layer}");
            assert!(of("bytes_read") <= of("bytes"), "{layer}");
        }
    }
    let other = fixture("models/llama-Q8_0.gguf");
    let of_other = ["run", "-m", &other, "-p", "Once", "-n", "1", "--sparse"];
    let named = ["predictor", "--sparse-file", &file];
    let another = ["made for another model", "m.sparse.gguf"];
    fails(1, &[&of_other[..], &named].concat(), &another);
    let missing = ["llama-Q8_0.sparse.gguf does not exist", "--predictor ridge"];
    fails(1, &[&of_other[..], &["predictor"]].concat(), &missing);
    // A model is not a predictor, nor is a part of one.
    let is_model = ["predictor", "--sparse-file", &model];
    let expected = ["expected a predictor's file"];
    fails(1, &[&of_other[..], &is_model].concat(), &expected);
    let cut = folder.path("cut.gguf");
    let bytes = first.unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let of_model = ["run", "-m", &model, "-p", "Once", "-n", "1", "--sparse"];
    let is_cut = ["predictor", "--sparse-file", &cut];
    fails(1, &[&of_model[..], &is_cut].concat(), &["cut.gguf"]);
}

#[test]
fn what_no_predictor_can_be_made_of_is_refused_by_name() {
    let (_folder, model, text) = begun("no-predictor");
    let other = fixture("models/llama-Q8_0.gguf");
    let make = |model, more: &[&'static str]| {
        let args: [&str; 5] = ["sparsify", "-m", model, "-f", &text];
        [&args[..], more]
            .concat()
            .iter()
            .map(|x| (*x).to_owned())
            .collect::<Vec<_>>()
    };
    for (model, status, more, part) in [
        (
            &model,
            1,
            &["--predictor", "ridge", "-c", "512"][..],
            "calibration needs 4096",
        ),
        (
            &model,
            2,
            &["--predictor", "pca"],
            "expected svd, ridge or sign",
        ),
        (&model, 2, &["--recall", "0.9"], "--predictor"),
        (
            &model,
            2,
            &["--predictor", "svd", "--recall", "1.5"],
            "--recall",
        ),
        (
            &model,
            2,
            &["--predictor", "svd", "--target-kl", "0.1"],
            "--target-kl",
        ),
        (
            &other,
            1,
            &["--predictor", "svd", "-c", "32"],
            "activation gives no zeros",
        ),
    ] {
        let args = make(model, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        fails(status, &args, &[part]);
    }
}
