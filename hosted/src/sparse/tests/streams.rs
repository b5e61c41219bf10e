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
            "quantization: vector[7] is NaN: expected a finite number",
        ),
        (
            &base[..352],
            "inference: vector has 352 elements: expected 384",
        ),
    ] {
        assert_eq!(stream.push_vector(vector).unwrap_err().to_string(), text);
    }
    assert_eq!(stream.stored().len(), n);
    broken[7] = 70_000.0;
    let error = StoredVector::new(PrecisionLane::Bit5, &broken).unwrap_err();
    assert_eq!(
        error.to_string(),
        "quantization: vector[7] is 70000: expected at most 65504 in size"
    );
    assert!(StoredVector::new(PrecisionLane::Float32, &broken).is_ok());
    let error = StoredVector::new(PrecisionLane::Bit5, &base[..100]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "inference: vector has 100 elements: expected a multiple of 32"
    );
}

/// Vectors that go round a few subjects, `n_alike` of each.
fn subjects(n: u64, n_alike: u64, scale: f32) -> impl Iterator<Item = Vec<f32>> {
    (0..n).map(move |i| {
        let subject = numbers(384, 7000 + i / n_alike);
        let noise = numbers(384, 9000 + i);
        let pairs = subject.iter().zip(noise);
        pairs.map(|(x, noise)| (x + 0.2 * noise) * scale).collect()
    })
}

fn reasons(stream: &StreamedEmbedding) -> Vec<(PrecisionLane, TransitionReason)> {
    let history = stream.telemetry().transition_history();
    history.map(|change| (change.to, change.reason)).collect()
}

/// Scales in f16 become 0, and all of a vector is lost.
#[test]
fn a_lane_that_loses_too_much_is_raised_and_not_taken_again() {
    let lanes_of = |scale: f32| {
        let mut stream = StreamedEmbedding::new(LaneConfig::default());
        let base = numbers(384, 1);
        for i in 0..40 {
            let noise = numbers(384, 100 + i);
            let pairs = base.iter().zip(noise);
            let vector: Vec<f32> = pairs
                .map(|(x, noise)| (x + 0.002 * noise) * scale)
                .collect();
            stream.push_vector(&vector).unwrap();
        }
        (stream.lane(), reasons(&stream))
    };
    use TransitionReason::{DriftPersistence, VelocityStalled};
    assert_eq!(
        lanes_of(1.0),
        (
            PrecisionLane::Bit3,
            vec![(PrecisionLane::Bit3, VelocityStalled)]
        )
    );
    let raised = [PrecisionLane::Bit7, PrecisionLane::Float32].map(|lane| (lane, DriftPersistence));
    assert_eq!(lanes_of(1e-9), (PrecisionLane::Float32, raised.to_vec()));
}

/// The budget is spent, so that nothing raises the lane: a stream of many subjects is worth fewer bits, unless it loses.
#[test]
fn an_uncertain_stream_is_lowered_unless_action_is_needed() {
    let config = LaneConfig {
        escalation_budget: 0.0,
        ..LaneConfig::default()
    };
    for (scale, changes) in [
        (
            1.0,
            vec![(PrecisionLane::Bit3, TransitionReason::StabilityReturned)],
        ),
        (1e-9, vec![]),
    ] {
        let mut stream = StreamedEmbedding::new(config);
        for vector in subjects(400, 8, scale) {
            stream.push_vector(&vector).unwrap();
        }
        assert!(stream.policy().metrics.uncertainty > 0.7);
        assert!(stream.policy().metrics.velocity > 0.01);
        assert_eq!(reasons(&stream), changes, "{scale}");
    }
}

#[test]
fn a_threshold_that_is_not_a_number_is_named_and_nothing_is_stored() {
    let mut stream = StreamedEmbedding::new(GraduationConfig {
        confidence_threshold: f32::NAN,
        ..GraduationConfig::default()
    });
    let error = stream.push_vector(&numbers(32, 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "inference: config.confidence_threshold is NaN: expected a number"
    );
    assert!(stream.stored().is_empty());
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
    let mut stream = provider.stream(GraduationConfig::default()).unwrap();
    let error = stream.push_vector(&[0.5; 32]).unwrap_err().to_string();
    let width = provider.dimension();
    assert_eq!(
        error,
        format!("inference: vector has 32 elements: expected {width}")
    );
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
    let stop = GenerationConfig {
        stop_tokens: vec![2, 1 << 30],
        ..config_of_8()
    };
    let error = backend.generate(&prompt, &stop).unwrap_err().to_string();
    assert!(error.starts_with("inference: stop_tokens[1] is 1073741824: the"));
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

#[test]
fn tokens_are_chosen_by_the_settings_that_are_given_alone() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tale-5.8m-Q4_K_M.gguf");
    let model = crate::Model::open(path).unwrap();
    let mut backend = SparseInferenceBackend::from_model(&model, crate::Limits::default()).unwrap();
    let prompt = model.encode("Once upon a time", false).unwrap();
    let logits = backend.forward(&prompt).unwrap();
    // The engine's own default leaves out those below a twentieth of the likeliest.
    let least = logits.iter().copied().fold(f32::MIN, f32::max) + 0.05f32.ln();
    let is_unlikely = |seed| {
        let any = GenerationConfig {
            max_new_tokens: 1,
            temperature: 1000.0,
            top_k: 0,
            top_p: 1.0,
            repetition_penalty: 1.0,
            stop_tokens: Vec::new(),
            seed,
        };
        let all = backend.generate(&prompt, &any).unwrap();
        all.get(prompt.len())
            .is_some_and(|id| logits[*id as usize] < least)
    };
    assert!((0..8).any(is_unlikely));
}

fn config_of_8() -> GenerationConfig {
    GenerationConfig {
        max_new_tokens: 8,
        ..GenerationConfig::default()
    }
}
