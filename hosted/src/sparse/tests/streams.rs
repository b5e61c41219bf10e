//! Streams of vectors in lanes, and providers over a real model.

use super::numbers;
use crate::sparse::*;

#[test]
fn streams_take_the_lane_that_the_policy_chooses() {
    let mut stream = StreamedEmbedding::new(LaneConfig::default());
    let base = numbers(384, 1);
    let near = |i: u64| -> Vec<f32> {
        base.iter()
            .zip(numbers(384, 500 + i))
            .map(|(b, x)| b + x * 0.002)
            .collect()
    };
    for i in 0..12 {
        stream.push_vector(&near(i)).unwrap();
    }
    assert_eq!(
        stream.lane(),
        PrecisionLane::Bit3,
        "a calm stream goes down"
    );
    let calm = stream.bytes();
    // Another subject: new at first, then drifting away from what was.
    for i in 0..40 {
        let other: Vec<f32> = numbers(384, 900)
            .iter()
            .zip(numbers(384, 1000 + i))
            .map(|(a, b)| a + 0.3 * b)
            .collect();
        stream.push_vector(&other).unwrap();
    }
    assert!(stream.lane() > PrecisionLane::Bit3, "{:?}", stream.policy());
    let lanes: std::collections::BTreeSet<_> =
        stream.stored().iter().map(StoredVector::lane).collect();
    assert!(lanes.len() >= 3, "{lanes:?}");
    // Bytes follow from the lanes: 3.5, 5.5, 7.5 bits an element.
    for stored in stream.stored() {
        let bits = [3.5, 5.5, 7.5, 32.0][stored.lane().index()];
        assert_eq!(stored.bytes() as f64, 384.0 * bits / 8.0);
    }
    assert!(calm < 12 * 384 * 6 / 8);
    for (i, stored) in stream.stored()[..12].iter().enumerate() {
        let (x, y) = (near(i as u64), stored.decode());
        let lost: f32 = x.iter().zip(&y).map(|(a, b)| (a - b).powi(2)).sum();
        let all: f32 = x.iter().map(|x| x * x).sum();
        assert!(lost / all < [0.05, 0.003, 0.0002, 1e-12][stored.lane().index()]);
    }
    assert_eq!(stream.telemetry().total_operations(), 52);
    assert!(stream.telemetry().transitions >= 2);
    let n = stream.stored().len();
    let mut broken = base.clone();
    broken[7] = f32::NAN;
    for (vector, text) in [
        (
            &broken[..],
            "inference: vector[7] is NaN: expected a finite number",
        ),
        (
            &base[..352],
            "inference: vector has 352 elements: expected 384",
        ),
    ] {
        assert_eq!(stream.push_vector(vector).unwrap_err().to_string(), text);
    }
    assert_eq!(stream.stored().len(), n);
    let error = StoredVector::new(PrecisionLane::Bit5, &base[..100]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "inference: vector has 100 elements: expected a multiple of 32"
    );
}

#[test]
fn a_real_model_embeds_and_continues() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tale-5.8m-Q4_K_M.gguf");
    let model = crate::Model::open(path).unwrap();
    let provider = SparseEmbeddingProvider::from_model(&model).unwrap();
    let vector = provider.embed_text("A little bird").unwrap();
    assert_eq!(vector.len(), provider.dimension());
    let mut session = model.session(crate::Limits::default()).unwrap();
    assert_eq!(vector, session.embed(&["A little bird"]).unwrap()[0]);
    let tokens = model.encode("A little bird", false).unwrap();
    assert_eq!(vector, provider.embed_tokens(&tokens).unwrap());
    let mut stream = provider.stream(GraduationConfig::default());
    for text in ["A little bird", "A small bird", "An old boat"] {
        let stored = stream.push(&provider, text).unwrap();
        assert_eq!(stored.lane(), PrecisionLane::Bit5);
    }

    let mut backend = SparseInferenceBackend::from_model(&model, crate::Limits::default()).unwrap();
    let prompt = model.encode("Once upon a time", false).unwrap();
    let logits = backend.forward(&prompt).unwrap();
    assert_eq!(logits.len(), backend.vocab_size());
    let likeliest = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    let next = backend.next_token(&prompt).unwrap();
    assert_eq!(next.map(|id| id as usize), likeliest);
    let config = GenerationConfig {
        max_new_tokens: 8,
        temperature: 0.0,
        repetition_penalty: 1.0,
        ..GenerationConfig::default()
    };
    let all = backend.generate(&prompt, &config).unwrap();
    assert_eq!(
        (&all[..prompt.len()], all.len()),
        (&prompt[..], prompt.len() + 8)
    );
    assert_eq!(all[prompt.len()], next.unwrap());
    assert_eq!(backend.generation_stats().tokens_generated, 9);
    let stop = GenerationConfig {
        stop_tokens: vec![all[prompt.len() + 3]],
        ..config
    };
    let stopped = backend.generate(&prompt, &stop).unwrap();
    assert_eq!(stopped, all[..prompt.len() + 3]);
    for (ids, text) in [
        (&[][..], "inference: input_ids is empty"),
        (
            &[1, 1 << 30][..],
            "inference: input_ids[1] is 1073741824: the vocabulary has",
        ),
    ] {
        let error = backend
            .generate(ids, &config_of_8())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(text), "{error}");
    }
}

fn config_of_8() -> GenerationConfig {
    GenerationConfig {
        max_new_tokens: 8,
        ..GenerationConfig::default()
    }
}
