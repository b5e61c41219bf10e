//! The contract's bits, pinned: results on fixed inputs, hashed.
//!
//! The other tests check that tables agree with each other and come near f64; these check that the reference itself has
//! not moved. A change here changes every saved logit and golden: it needs a reason, and all constants have to be
//! computed again.

use super::recurrent::Case;
use super::{attention, recurrent, rows};
use crate::activation::{ActivationKinds, ActivationLayout};
use crate::contract::GROUP;
use crate::recurrent::Rule;
use crate::table::Store;
use crate::tests::{Matrix, Noise, quantized, scalar, tables};
use crate::{KvLayout, KvType, WeightType};
extern crate std;

/// FNV-1a over words. The bits of a NaN are outside the contract, so all NaNs count as one.
fn hash(words: impl IntoIterator<Item = u32>) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |h, word| {
        let word = if f32::from_bits(word).is_nan() {
            f32::NAN.to_bits()
        } else {
            word
        };
        (h ^ u64::from(word)).wrapping_mul(0x100_0000_01b3)
    })
}

fn hash_floats(x: &[f32]) -> u64 {
    hash(x.iter().map(|x| x.to_bits()))
}

/// Ordinary numbers, then numbers of very different sizes.
fn values(n: usize, noise: &mut Noise) -> std::vec::Vec<f32> {
    let mut x = noise.values(n / 2);
    x.extend(noise.wide_values(n - n / 2));
    x
}

#[test]
fn products_are_pinned() {
    const TOKENS: usize = 6;
    let matrices = WeightType::ALL.map(|ty| {
        let n_cols = if ty.ggml().block_len() == 1 { 601 } else { 768 };
        Matrix::random(ty, 40, n_cols, &mut Noise(0x51))
    });
    for table in tables() {
        let hashes = matrices.each_ref().map(|matrix| {
            let x = values(TOKENS * matrix.layout.n_cols(), &mut Noise(0x52));
            let rows = quantized(scalar(), &matrix.activation_layout(), &x);
            hash_floats(&matrix.multiply(table, &rows, TOKENS, Store::Add))
        });
        assert_eq!(hashes, PRODUCTS, "{}", table.name());
    }
}

#[test]
fn activation_rows_are_pinned() {
    let layout = ActivationLayout::new(3 * GROUP + 77, ActivationKinds::all());
    let n = 20 * layout.n_cols();
    let inputs = [values(n, &mut Noise(0x53)), Noise(0x54).any_values(n)];
    for table in tables() {
        let hashes = inputs.each_ref().map(|x| {
            let rows = quantized(table, &layout, x);
            let words = rows.bytes().as_chunks::<4>().0;
            hash(words.iter().map(|word| u32::from_le_bytes(*word)))
        });
        assert_eq!(hashes, ACTIVATION_ROWS, "{}", table.name());
    }
}

#[test]
fn norm_swiglu_and_rope_are_pinned() {
    let weights = values(1000, &mut Noise(0x55));
    let inputs = [values(1000, &mut Noise(0x56)), Noise(0x57).any_values(1000)];
    for table in tables() {
        let hashes = inputs
            .each_ref()
            .map(|x| rows::run(table, x, &weights).map(hash));
        assert_eq!(hashes, ROWS, "{}", table.name());
    }
}

#[test]
fn gelu_is_pinned() {
    let ones = std::vec![1.0; 1000];
    let inputs = [values(1000, &mut Noise(0x5a)), Noise(0x5b).any_values(1000)];
    for table in tables() {
        let hashes = inputs.each_ref().map(|x| {
            let (mut tanh, mut erf) = (x.clone(), x.clone());
            table.gelu_mul(x, &ones, &mut tanh);
            table.gelu_erf_mul(x, &ones, &mut erf);
            [tanh, erf].map(|x| hash_floats(&x))
        });
        assert_eq!(hashes, GELU, "{}", table.name());
    }
}

#[test]
fn attention_is_pinned() {
    let cases = KvType::ALL.map(|ty| {
        let layout = KvLayout {
            type_k: ty,
            type_v: ty,
            head_dim_k: 67,
            head_dim_v: 53,
        };
        attention::Case::random(layout, 150, 3, &mut Noise(0x58))
    });
    for table in tables() {
        let hashes = cases.each_ref().map(|case| hash_floats(&case.run(table)));
        assert_eq!(hashes, ATTENTION, "{}", table.name());
    }
}

#[test]
fn recurrences_are_pinned() {
    let cases = [Rule::Delta, Rule::Add].map(|rule| Case::random(rule, (67, 53), 5));
    let mut noise = Noise(0x59);
    let [x, y, a] = [(); 3].map(|()| values(500, &mut noise));
    for table in tables() {
        let [delta, add] = cases.each_ref().map(|case| {
            let (out, state) = case.run(table, 2);
            hash_floats(&[out, state].concat())
        });
        let gates = hash(recurrent::gates(table, &x, &y, &a).concat());
        assert_eq!([delta, add, gates], RECURRENCES, "{}", table.name());
    }
}

/// By tanh and by the error function, of ordinary and of any numbers.
const GELU: [[u64; 2]; 2] = [
    [0x4c69_0ca2_6f18_3ce9, 0x1d37_c192_d97b_9d55],
    [0x4cd4_10b8_9172_4121, 0x65eb_d9d8_7f26_86aa],
];

const RECURRENCES: [u64; 3] = [
    0xc560_d0ba_40ba_9a1b,
    0xe645_d120_6356_e6e6,
    0x56d5_ac7c_c3d1_de59,
];

const PRODUCTS: [u64; 29] = [
    0x2396_2510_425b_eca7,
    0x3f1b_f047_255d_daaa,
    0xa592_0052_c619_b757,
    0x50db_55f9_0b64_e28e,
    0xdd27_1a85_6cf8_def0,
    0x480c_b211_6ce5_57f1,
    0x9b2b_7550_f53b_542a,
    0x601e_351a_14a7_035c,
    0xcbcb_dfa5_6979_a9b6,
    0xf842_ca48_9eb4_21cf,
    0x77aa_3da4_b8a1_2776,
    0x0aee_6c50_4941_b867,
    0x0ea7_ae02_87d0_738d,
    0xbacf_7d9a_b35c_2aed,
    0x5618_7e29_3169_135b,
    0xd5a3_9fce_bec1_12a6,
    0xe248_8bd1_902e_adde,
    0xa917_15fc_8527_67d8,
    0x42e6_e8f7_5e72_ecf6,
    0x4ecd_9d79_3e0f_12fb,
    0x9a33_c180_7ef0_0899,
    0x7b88_d4f6_b2a1_9d78,
    0x5224_613f_222c_d870,
    0xe21f_acc6_852d_d1f5,
    0x7dba_8d32_7ab0_5c04,
    0xe6ba_d43e_aa07_4386,
    0x1736_bd0f_d97d_0d42,
    0xf357_6942_e9f0_2e5a,
    0x8ddc_1d3f_d788_c681,
];

const ACTIVATION_ROWS: [u64; 2] = [0xdbd0_dd74_4aea_a8d4, 0x81a3_5d7f_33e5_5610];

const ROWS: [[u64; 3]; 2] = [
    [
        0xf9c2_cacd_1e6a_d15c,
        0x3c7d_82b9_fc20_8393,
        0x1556_f3df_af86_55c7,
    ],
    [
        0xbeca_8d2c_9e97_a745,
        0x6736_9390_86ee_a0d6,
        0x596b_2597_62c7_0317,
    ],
];

const ATTENTION: [u64; 6] = [
    0x17b4_06b7_d3e4_359e,
    0x01c2_c1cc_6c97_a726,
    0x72a4_a070_74e8_7436,
    0x3687_63c4_c6ca_2682,
    0xc65b_a32f_7b47_9bed,
    0x8d17_c6fb_671a_9009,
];
