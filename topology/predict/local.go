package predict

import (
	"cmp"
	"math"
	"slices"
)

const (
	// maxAlike is the number of similar regions from which a correction is computed.
	maxAlike = 20
	// alikeAt is the difference of two regions' rows, in logarithms, at which the weight
	// of one region for the other is 1/e.
	alikeAt = 0.07
	// caution is the weight of "no correction" in the mean with the errors of similar
	// regions.
	caution = 0.5
	// maxOff bounds the error of one sample, in logarithms.
	maxOff = 1.0
	// maxLandmarks is about the number of columns that are compared for two rows.
	maxLandmarks = 128
)

// like is a similar region with its weight.
type like struct {
	region int
	weight float64
}

// findAlike finds, for each region, the regions with the most similar rows in the map.
// Regions that are near each other have similar distances to all other regions.
func (m *Model) findAlike() {
	m.alike, m.unlike = make([][]like, m.n), m.square(0)
	step := max(1, m.n/maxLandmarks)
	for i := range m.n {
		for k := i + 1; k < m.n; k++ {
			var sum, count float64
			for l := 0; l < m.n; l += step {
				if l != i && l != k {
					d := max(-maxOff, min(maxOff, m.mapped[i*m.n+l]-m.mapped[k*m.n+l]))
					sum += d * d
					count++
				}
			}
			m.set(m.unlike, i, k, math.Sqrt(sum/max(count, 1)))
		}
	}
	order := make([]int, m.n)
	for i := range m.n {
		for k := range order {
			order[k] = k
		}
		row := m.unlike[i*m.n : (i+1)*m.n]
		slices.SortFunc(order, func(x, y int) int { return cmp.Or(cmp.Compare(row[x], row[y]), x-y) })
		for _, k := range order[:min(maxAlike, m.n)] {
			m.alike[i] = append(m.alike[i], like{k, math.Exp(-row[k] / alikeAt)})
		}
	}
}

// local returns the predicted logarithm of a round trip, and its expected error. The
// prediction is the value of the map, corrected by the errors of the map between regions
// that are similar to the two (kernel regression: Nadaraya 1964, Watson 1964). A sample of
// the pair itself is ignored.
func (m *Model) local(i, j int) (log, sigma float64) {
	prior := (m.scale[i] + m.scale[j]) / 2
	weights, off, sizes := caution, 0.0, caution*prior
	for _, x := range m.alike[i] {
		row := m.off[x.region*m.n : (x.region+1)*m.n]
		for _, y := range m.alike[j] {
			v := row[y.region]
			if v != v || x.region == i && y.region == j || x.region == j && y.region == i {
				continue
			}
			w := x.weight * y.weight
			weights += w
			off += w * v
			sizes += w * math.Abs(v)
		}
	}
	return m.mapped[i*m.n+j] + off/weights, sizes / weights
}

// calibrate computes scale and widen, from which expected errors follow. It predicts
// measured pairs without their own samples and compares the predictions with the samples.
func (m *Model) calibrate() {
	m.scale, m.widen = make([]float64, m.n), math.Ln10-math.Ln2
	count := make([]float64, m.n)
	all := priorWeight * priorError
	for _, p := range m.pairs {
		v := math.Abs(m.off[p.A*m.n+p.B])
		all += v
		for _, end := range []int{p.A, p.B} {
			m.scale[end] += v
			count[end]++
		}
	}
	all /= float64(len(m.pairs) + priorWeight)
	for i := range m.scale {
		m.scale[i] = (m.scale[i] + priorWeight*all) / (count[i] + priorWeight)
	}
	if len(m.pairs) < minCalibration {
		return
	}
	ratios := make([]float64, 0, len(m.pairs))
	for _, p := range m.pairs {
		log, sigma := m.local(p.A, p.B)
		at := p.A*m.n + p.B
		// All maps but one were fitted with the sample, so the error of their mean is too
		// small. The one map without the sample has a larger error than a mean of such
		// maps would have. The true error is between the two.
		all, one := math.Log(p.RTT)-log, m.off[at]-(log-m.mapped[at])
		ratios = append(ratios, math.Abs(all+one)/2/sigma)
	}
	slices.Sort(ratios)
	m.widen = ratios[int(coverage*float64(len(ratios)))]
}

// minCalibration is the least number of pairs from which errors are calibrated. With fewer
// pairs errors are assumed to be Laplacian. Four fifths of Laplacian errors are below ln 5
// times the mean.
const minCalibration = 50
