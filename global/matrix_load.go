package global

import (
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// loadMemory: a report counts for as much as the mean of so many, with the
// usual five seconds about a minute.
const loadMemory = 12

// Track is the mean and the variance of what a region's reports say of its
// load, exponentially weighted (West, "Updating Mean and Variance Estimates",
// CACM 22, 1979): a report itself is one value.
type Track struct {
	reports    int
	cpu, queue moments
}

type moments struct{ mean, variance float64 }

func (m *moments) add(x, weight float64) {
	d := x - m.mean
	m.mean += weight * d
	m.variance = (1 - weight) * (m.variance + weight*d*d)
}

// Add takes a report. One without utilisation, or with an impossible one, says
// nothing.
func (l *Track) Add(rep *nusav1.RegionReport) {
	cpu := rep.GetUtilisation().GetCpu()
	if rep.GetUtilisation() == nil || !(cpu >= 0 && cpu <= 1) {
		return
	}
	l.reports = min(l.reports+1, loadMemory)
	weight := 1 / float64(l.reports) // the first ones count alike
	l.cpu.add(cpu, weight)
	l.queue.add(float64(max(0, rep.GetQueueLength())), weight)
}

// loads of the regions that report; of those that are not connected any more
// nothing is known. mu is held.
func (st *State) loads() map[string]topology.Load {
	out := make(map[string]topology.Load, len(st.Regions))
	for name, r := range st.Regions {
		if r.Session == nil || r.Load.reports == 0 {
			continue
		}
		out[name] = topology.Load{
			CPUMean: r.Load.cpu.mean, CPUVariance: min(r.Load.cpu.variance, 0.25),
			QueueMean: r.Load.queue.mean, QueueVariance: r.Load.queue.variance,
		}
	}
	return out
}
