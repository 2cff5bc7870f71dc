package pools

import "fmt"

// MaxWeight is the greatest weight.
const MaxWeight = 100

// Weights are the policy of a pool. Each is 0..MaxWeight, and 0 does not count.
type Weights struct {
	CPU, Memory int32 // measured use
	Quota       int32 // instances as a share of the instance quota
}

// Fault returns the name of the first weight that is out of range and what is wrong with it. Both are
// empty if nothing is.
func (w Weights) Fault() (field, message string) {
	for _, f := range []struct {
		name  string
		value int32
	}{{"cpu", w.CPU}, {"memory", w.Memory}, {"quota", w.Quota}} {
		if f.value < 0 || f.value > MaxWeight {
			return f.name, fmt.Sprintf("is %d, must be 0..%d", f.value, MaxWeight)
		}
	}
	return "", ""
}

// Score returns the term of a weight for a share 0..1 in use: 0.5 for none, -0.5 for all, times the
// weight's part of MaxWeight. So a node of average use scores like one whose use is unknown.
func Score(weight int32, share float64) float64 {
	return float64(weight) / MaxWeight * (0.5 - min(1, max(0, share)))
}
