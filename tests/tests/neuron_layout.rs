//! Matrices by row and by neuron, read as docs/slc.md describes them, without the kernels that pack them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice_core::gguf::Gguf;
use sluice_core::kernels::GgmlType::{
    self, IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
};
use sluice_core::kernels::half::f16_to_f32;
use sluice_core::kernels::neuron::Form;
use sluice_core::slc::Slc;
use sluice_make::slc::FfnLayout;
use sluice_tests::build::Shape;
use sluice_tests::packing::packed;
use sluice_tests::reference::dequant::dequantise;

/// A row of the page's table.
struct Format {
    ty: GgmlType,
    /// Columns that the numbers are for.
    unit: usize,
    /// Bytes of each number of a row, in the head's order.
    numbers: &'static [usize],
    /// Zero bytes after the first number of all rows.
    zeros: usize,
    planes: &'static [usize],
    /// Columns whose low bits come before their high bits.
    run: usize,
}

const fn format(
    ty: GgmlType,
    unit: usize,
    numbers: &'static [usize],
    planes: &'static [usize],
) -> Format {
    Format {
        ty,
        unit,
        numbers,
        zeros: if ty as u32 == Q6_K as u32 { 32 } else { 0 },
        planes,
        run: if ty as u32 == Q6_K as u32 { 16 } else { 32 },
    }
}

const FORMATS: [Format; 13] = [
    format(Q8_0, 32, &[2], &[8]),
    format(Q4_0, 32, &[2], &[4]),
    format(IQ4_NL, 32, &[2], &[4]),
    format(Q5_0, 32, &[2], &[4, 1]),
    format(Q4_1, 32, &[2, 2], &[4]),
    format(Q5_1, 32, &[2, 2], &[4, 1]),
    format(MXFP4, 32, &[1], &[4]),
    format(Q4_K, 256, &[2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], &[4]),
    format(
        Q5_K,
        256,
        &[2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        &[4, 1],
    ),
    format(
        Q6_K,
        256,
        &[2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        &[4, 2],
    ),
    format(Q3_K, 256, &[2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], &[2, 1]),
    format(
        Q2_K,
        256,
        &[2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        &[2],
    ),
    format(IQ4_XS, 256, &[2, 1, 1, 1, 1, 1, 1], &[4]),
];

/// Numbers by unit of columns, and codes by column.
#[derive(Clone, Default)]
struct Row {
    numbers: Vec<Vec<u8>>,
    codes: Vec<u8>,
}

impl Format {
    /// Columns of each group.
    fn groups(n_cols: usize) -> impl Iterator<Item = usize> {
        (0..n_cols)
            .step_by(256)
            .map(move |col| 256.min(n_cols - col))
    }

    /// Rows of a matrix by row.
    fn by_row(&self, bytes: &[u8], n_rows: usize, n_cols: usize) -> Vec<Row> {
        let mut rest = bytes;
        let mut take = |n: usize| rest.split_off(..n).unwrap();
        let rows = (0..n_rows).map(|_| {
            let mut row = Row::default();
            for n_cols in Self::groups(n_cols) {
                for _ in 0..n_cols / self.unit {
                    row.numbers.push(take(self.numbers.iter().sum()).to_vec());
                }
                let first = row.codes.len();
                row.codes.resize(first + n_cols, 0);
                for run in row.codes[first..].chunks_mut(self.run) {
                    let mut shift = 0;
                    for bits in self.planes {
                        for columns in run.chunks_mut(32 / bits) {
                            let line = take(4);
                            for (column, code) in columns.iter_mut().enumerate() {
                                let byte = line[column % 4] >> (column / 4 * bits);
                                *code |= (byte & (0xff >> (8 - bits))) << shift;
                            }
                        }
                        shift += bits;
                    }
                }
            }
            row
        });
        let rows = rows.collect();
        assert!(rest.is_empty());
        rows
    }

    /// Rows of a matrix by neuron.
    fn by_neuron(&self, bytes: &[u8], n_rows: usize, n_cols: usize) -> Vec<Row> {
        let mut rows = vec![Row::default(); n_rows];
        let mut at = 0;
        let stripes = |rows: usize| {
            (0..rows)
                .step_by(2048)
                .map(move |row| row..rows.min(row + 2048))
        };
        for (stripe, n_cols) in
            stripes(n_rows).flat_map(|s| Self::groups(n_cols).map(move |n| (s.clone(), n)))
        {
            for panel in rows[stripe].chunks_mut(16) {
                for _ in 0..n_cols / self.unit {
                    for (i, n) in self.numbers.iter().enumerate() {
                        for row in &mut *panel {
                            if i == 0 {
                                row.numbers.push(Vec::new());
                            }
                            row.numbers.last_mut().unwrap().extend(&bytes[at..at + n]);
                            at += n;
                        }
                        at += if i == 0 { self.zeros } else { 0 };
                    }
                }
                at = at.next_multiple_of(32);
            }
        }
        at = at.next_multiple_of(64);
        for stripe in stripes(n_rows).flat_map(|s| core::iter::repeat_n(s, n_cols)) {
            for chunk in rows[stripe].chunks_mut(128) {
                let (n, m) = (chunk.len() / 2, chunk.len() / 32);
                let mut codes = vec![0u8; chunk.len()];
                let mut shift = 0;
                for &bits in self.planes {
                    let plane = &bytes[at..at + chunk.len() * bits / 8];
                    at += plane.len();
                    for (row, code) in codes.iter_mut().enumerate() {
                        let (half, row) = (row / n, row % n);
                        let (q, k, l) = (row / 16, row % 16 / 4, row % 4);
                        let p = (k * m + q) * 4 + l;
                        let part = match bits {
                            8 => plane[half * n + p],
                            4 => plane[p] >> (4 * half),
                            2 if p < n / 2 => plane[p] >> (4 * half),
                            2 => plane[p - n / 2] >> (4 * half + 2),
                            _ => plane[half * n / 8 + p / 8] >> (p % 8),
                        };
                        *code |= (part & (0xff >> (8 - bits))) << shift;
                    }
                    shift += bits;
                }
                for (row, code) in chunk.iter_mut().zip(codes) {
                    row.codes.push(code);
                }
            }
        }
        assert_eq!(at, bytes.len());
        rows
    }

    /// The values of a row.
    fn values(&self, row: &Row) -> Vec<f64> {
        let units = row.codes.chunks(self.unit).zip(&row.numbers);
        units
            .flat_map(|(codes, numbers)| {
                let value = |(column, code): (usize, &u8)| self.value(numbers, column, *code);
                codes.iter().enumerate().map(value).collect::<Vec<_>>()
            })
            .collect()
    }

    /// The value of a code, by ggml's definition of its type.
    fn value(&self, numbers: &[u8], column: usize, code: u8) -> f64 {
        const NL: [i8; 16] = [
            -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
        ];
        const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
        let half = |at: usize| {
            let bits = u16::from_le_bytes([numbers[at], numbers[at + 1]]);
            f64::from(f16_to_f32(bits))
        };
        let number = |i: usize| f64::from(numbers[i]);
        let (q, sub) = (f64::from(code), column / 32);
        match self.ty {
            Q8_0 => half(0) * (q - 128.0),
            Q4_0 => half(0) * (q - 8.0),
            Q5_0 => half(0) * (q - 16.0),
            IQ4_NL => half(0) * f64::from(NL[usize::from(code)]),
            Q4_1 | Q5_1 => half(0) * q + half(2),
            MXFP4 => 2f64.powf(number(0) - 128.0) * f64::from(E2M1[usize::from(code)]),
            Q4_K | Q5_K => {
                let (low, high) = (numbers[4 + sub], numbers[12 + sub % 4] >> (sub / 4 * 2));
                let scale = low & 0xf | (high & 3) << 4;
                let min = low >> 4 | (high >> 4 & 3) << 4;
                half(0) * f64::from(scale) * q - half(2) * f64::from(min)
            }
            Q6_K => {
                let scale = i8::from_le_bytes([numbers[2 + column / 16]]);
                half(0) * f64::from(scale) * (q - 32.0)
            }
            Q3_K => {
                let i = column / 16;
                let low = numbers[2 + i % 8] >> (i / 8 * 4) & 0xf;
                let high = numbers[10 + i % 4] >> (i / 4 * 2) & 3;
                half(0) * (f64::from(low | high << 4) - 32.0) * (q - 4.0)
            }
            Q2_K => {
                let scales = numbers[4 + column / 16];
                half(0) * f64::from(scales & 0xf) * q - half(2) * f64::from(scales >> 4)
            }
            _ => {
                let high = u16::from_le_bytes([numbers[2], numbers[3]]) >> (2 * sub) & 3;
                let low = numbers[4 + sub / 2] >> (sub % 2 * 4) & 0xf;
                let scale = f64::from(low) + 16.0 * f64::from(high) - 32.0;
                half(0) * scale * f64::from(NL[usize::from(code)])
            }
        }
    }
}

#[test]
fn the_page_describes_every_byte() {
    for format in FORMATS {
        let is_wide = format.unit == 256;
        let shape = Shape {
            ty: format.ty,
            n_layer: 1,
            // More than one stripe in two of them.
            n_embd: match format.ty {
                Q4_K => 2304,
                Q4_0 => 2432,
                _ if is_wide => 256,
                _ => 352,
            },
            n_ff: if is_wide { 768 } else { 288 },
            ..Shape::SMALL
        };
        let gguf_file = shape.file().bytes();
        let gguf = Gguf::parse(&gguf_file, gguf_file.len() as u64).unwrap();
        let file = packed(&gguf_file, FfnLayout::Neurons).unwrap();
        let slc = Slc::parse(&file, file.len() as u64).unwrap();
        let to_usize = |n: u64| usize::try_from(n).unwrap();
        for (tensor, header) in slc.tensors().filter(|(_, t)| t.form != Form::Panels) {
            let [n_cols, n_rows] = [tensor.dims[0], tensor.dims[1]].map(to_usize);
            let payload = &file[to_usize(header.offset)..][..to_usize(header.len_bytes)];
            let rows = match header.form {
                Form::Rows => format.by_row(payload, n_rows, n_cols),
                _ => format.by_neuron(payload, n_rows, n_cols),
            };
            let of_gguf = gguf.tensor(tensor.name).unwrap();
            let data = &gguf_file[to_usize(of_gguf.offset)..][..to_usize(of_gguf.len_bytes)];
            let expected = dequantise(tensor.ty as u32, data, n_rows * n_cols).unwrap();
            for (row, expected) in rows.iter().zip(expected.chunks_exact(n_cols)) {
                let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
                let tolerance = 2e-6 * f64::from(largest);
                for (x, y) in format.values(row).iter().zip(expected) {
                    let distance = (x - f64::from(*y)).abs();
                    assert!(
                        distance <= tolerance,
                        "{} {}: {x} {y}",
                        tensor.ty,
                        tensor.name
                    );
                }
            }
        }
    }
}
