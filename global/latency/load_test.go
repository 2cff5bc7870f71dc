package latency

import (
	"math"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestLoadTracker(t *testing.T) {
	var l LoadTracker
	for _, cpu := range []float64{0.2, 0.4, math.NaN(), 7} {
		l.Add(&nusav1.RegionReport{Utilisation: &nusav1.Utilisation{Cpu: cpu}, QueueLength: 3})
	}
	l.Add(&nusav1.RegionReport{})
	if math.Abs(l.cpu.mean-0.3) > 1e-12 || math.Abs(l.cpu.variance-0.01) > 1e-12 || l.queue.mean != 3 || l.queue.variance != 0 || l.reports != 2 {
		t.Errorf("%+v", l)
	}
	for range 200 {
		l.Add(&nusav1.RegionReport{Utilisation: &nusav1.Utilisation{Cpu: 0.9}})
	}
	if math.Abs(l.cpu.mean-0.9) > 1e-6 || l.cpu.variance > 1e-6 {
		t.Errorf("after long: %+v", l)
	}
}
