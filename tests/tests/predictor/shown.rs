//! Observers of choices, and counts of neurons by layer.

use super::{Loaded, RANK, SHAPE, Way, config_of, ids, predictor};
use sluice_core::engine::{NeuronChoice, NeuronCounts, Observer, SiteInput};
use sluice_core::kernels::GgmlType;
use sluice_make::slc::FfnLayout;
use sluice_tests::packing::{InPlace, packed};
use std::sync::Mutex;

/// Numbers of each layer's neurons: all, active ones, chosen ones, and those that are both.
#[derive(Default)]
struct Seen([Mutex<[usize; 4]>; 2]);

impl Observer for Seen {
    fn sees(&self, _: SiteInput<'_>) {}

    fn sees_choices(&self) -> bool {
        true
    }

    fn sees_choice(&self, choice: NeuronChoice<'_>) {
        assert!(choice.first + choice.values.len() <= SHAPE.n_ff as usize);
        let mut sums = self.0[choice.layer].lock().unwrap();
        for (value, is_chosen) in choice.values.iter().zip(choice.is_chosen) {
            let is_active = *value != 0.0;
            let all = [true, is_active, *is_chosen, is_active && *is_chosen];
            sums.iter_mut()
                .zip(all)
                .for_each(|(n, is)| *n += usize::from(is));
        }
    }
}

#[test]
fn choices_are_shown_with_all_values_and_change_no_bit() {
    let mut file = SHAPE.file();
    file.set("llama.activation", "relu");
    let model = file.bytes();
    let mut in_place = InPlace::new(packed(&model, FfnLayout::Predicted).unwrap()).unwrap();
    let (ids, n_ff) = (ids(16), SHAPE.n_ff as usize);
    let file = predictor(&SHAPE, GgmlType::Q8_0, Some(RANK), 0.1).bytes();
    Loaded::with(&file, &config_of(&model), |predictor| {
        let plain = Way::plain(Some(predictor));
        let (expected, whole) = plain.run(in_place.model().unwrap(), &ids);
        let mut first = None;
        for (n_workers, chunk) in [(1, 1), (2, 5), (2, 16)] {
            let seen = Seen::default();
            let counts = [NeuronCounts::default(), NeuronCounts::default()];
            let way = Way {
                n_workers,
                chunk,
                observer: Some(&seen),
                counts: &counts,
                ..plain
            };
            let found = way.run(in_place.model().unwrap(), &ids);
            assert!(found.0 == expected, "{n_workers} {chunk}");
            let seen = seen.0.map(|sums| sums.into_inner().unwrap());
            for [n, active, chosen, both] in seen {
                assert_eq!(n, n_ff * ids.len());
                assert!(both < active && both < chosen && chosen < n, "{seen:?}");
            }
            assert_eq!(*first.get_or_insert(seen), seen);
            let [one, other] = counts.each_ref().map(NeuronCounts::get);
            assert_eq!(one.n + other.n, found.1.n);
            assert_eq!(one.n_skipped + other.n_skipped, found.1.n_skipped);
            if chunk == 1 {
                // Without an observer, up is read of neurons that are chosen and whose gate is not 0.
                let both: usize = seen.iter().map(|sums| sums[3]).sum();
                assert_eq!(whole.n - whole.n_skipped, both);
            }
        }
    })
    .unwrap();
}
