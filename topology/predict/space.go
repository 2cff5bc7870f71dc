package predict

import "math"

// shape is the shape of a space.
type shape struct {
	// dim is the dimension of the Euclidean part. rank, an even number, is the number of
	// factors for round trips that no metric can express.
	dim, rank int
}

const (
	epochs    = 80
	firstStep = 0.2 // the first and the last step of the fit, in units of the parameters
	lastStep  = 0.001
	// huberAt is the logarithmic error above which the gradient hardly grows.
	huberAt = 0.06
	// pullPoint, pullHeight and pullFactor are the strengths of the pulls towards the
	// start, in units of samples with an error of 1. startHeight is the height of each
	// region at the start.
	pullPoint, pullHeight, pullFactor = 0.3, 0.02, 0.5
	startHeight                       = 0.05
)

// space is a map that is fitted to many samples at once. A region is a point x with a
// height h, as in Vivaldi (Dabek et al., SIGCOMM 2004), and a few factors u for round
// trips that no metric can express, mainly detours:
//
//	log rtt(i, j) = unit + log(‖xi − xj‖ + hi + hj) + Σ ± ui uj,  with alternating signs
//
// The fit minimises the pseudo-Huber loss of the logarithm over all samples together
// (Adam: Kingma and Ba, ICLR 2015). So an error counts relative to the round trip, and an
// outlier counts little.
type space struct {
	shape
	firm   float64 // the factor of the pulls towards the start
	stride int
	unit   float64   // the mean logarithm of the round trips
	p      []float64 // the parameters of each region: x, log h, u
}

// logged is a sample: a pair, and the logarithm of its round trip.
type logged struct {
	a, b int
	y    float64
}

func newSpace(regions int, s shape, firm, unit float64, r *random) *space {
	sp := &space{shape: s, firm: firm, stride: s.dim + 1 + s.rank, unit: unit}
	sp.p = make([]float64, regions*sp.stride)
	for i := range regions {
		p := sp.of(i)
		for k := range p {
			spread := 0.5
			if k > s.dim {
				spread = 0.1
			}
			p[k] = spread * (2*r.float() - 1)
		}
		p[s.dim] = math.Log(startHeight)
	}
	return sp
}

func (s *space) of(region int) []float64 {
	return s.p[region*s.stride : (region+1)*s.stride]
}

// log returns the predicted logarithm of a round trip, and the parts from which descend
// computes the gradient. heights are the heights of all regions, computed once for many
// calls.
func (s *space) log(a, b int, heights []float64) (log, dist, metric float64) {
	p, q := s.of(a), s.of(b)
	var square float64
	for k := range s.dim {
		d := p[k] - q[k]
		square += d * d
	}
	metric = math.Sqrt(square + 1e-9)
	dist = metric + heights[a] + heights[b]
	log = s.unit + math.Log(dist)
	for k := s.dim + 1; k+1 < s.stride; k += 2 {
		log += p[k]*q[k] - p[k+1]*q[k+1]
	}
	return log, dist, metric
}

func (s *space) heights(into []float64) []float64 {
	into = into[:0]
	for i := s.dim; i < len(s.p); i += s.stride {
		into = append(into, math.Exp(s.p[i]))
	}
	return into
}

// fit repeatedly moves all parameters against the gradient of the loss.
func (s *space) fit(of []logged) {
	const keepMean, keepSquare = 0.9, 0.99
	gradient, mean, square := make([]float64, len(s.p)), make([]float64, len(s.p)), make([]float64, len(s.p))
	heights := make([]float64, 0, len(s.p)/s.stride)
	warmMean, warmSquare := 1.0, 1.0
	for e := range epochs {
		left := 1 - float64(e)/epochs
		step := firstStep*left*left + lastStep
		heights = s.heights(heights)
		clear(gradient)
		for _, o := range of {
			s.descend(o, heights, gradient)
		}
		warmMean *= keepMean
		warmSquare *= keepSquare
		for i, p := range s.p {
			g := gradient[i]
			switch k := i % s.stride; {
			case k < s.dim:
				g += s.firm * pullPoint * p
			case k == s.dim:
				g += pullHeight * (p - math.Log(startHeight))
			default:
				g += s.firm * pullFactor * p
			}
			mean[i] = keepMean*mean[i] + (1-keepMean)*g
			square[i] = keepSquare*square[i] + (1-keepSquare)*g*g
			s.p[i] -= step * mean[i] / (1 - warmMean) / (math.Sqrt(square[i]/(1-warmSquare)) + 1e-8)
		}
	}
}

// descend adds the gradient of one sample's loss.
func (s *space) descend(o logged, heights, gradient []float64) {
	log, dist, metric := s.log(o.a, o.b, heights)
	err := log - o.y
	pull := err / math.Sqrt(1+err*err/(huberAt*huberAt))
	p, q := s.of(o.a), s.of(o.b)
	gp, gq := gradient[o.a*s.stride:][:s.stride], gradient[o.b*s.stride:][:s.stride]
	along := pull / dist
	gp[s.dim] += along * heights[o.a]
	gq[s.dim] += along * heights[o.b]
	along /= metric
	for k := range s.dim {
		d := along * (p[k] - q[k])
		gp[k] += d
		gq[k] -= d
	}
	for k := s.dim + 1; k+1 < s.stride; k += 2 {
		gp[k] += pull * q[k]
		gq[k] += pull * p[k]
		gp[k+1] -= pull * q[k+1]
		gq[k+1] -= pull * p[k+1]
	}
}

// random is the generator splitmix64 (Steele et al., "Fast Splittable Pseudorandom Number
// Generators", OOPSLA 2014). Its numbers depend only on the seed.
type random uint64

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// float returns a number in [0, 1).
func (r *random) float() float64 { return float64(r.next()>>11) / (1 << 53) }

// below returns a number in [0, n).
func (r *random) below(n int) int { return int(r.next() % uint64(n)) }
