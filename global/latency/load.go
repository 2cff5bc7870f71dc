package latency

import (
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// loadReports is the number of reports over which the mean is taken. That is about a minute at the
// default interval of five seconds.
const loadReports = 12

// LoadTracker tracks the exponentially weighted mean and variance of a region's load over its
// reports (West, "Updating Mean and Variance Estimates", CACM 22, 1979). The zero value is ready to
// use.
type LoadTracker struct {
	reports    int
	cpu, queue moments
}

type moments struct{ mean, variance float64 }

func (m *moments) add(x, weight float64) {
	d := x - m.mean
	m.mean += weight * d
	m.variance = (1 - weight) * (m.variance + weight*d*d)
}

// Add adds a report. It ignores a report without utilisation, or with an impossible one.
func (l *LoadTracker) Add(rep *nusav1.RegionReport) {
	cpu := rep.GetUtilisation().GetCpu()
	if rep.GetUtilisation() == nil || !(cpu >= 0 && cpu <= 1) {
		return
	}
	l.reports = min(l.reports+1, loadReports)
	weight := 1 / float64(l.reports) // a plain mean of the first reports
	l.cpu.add(cpu, weight)
	l.queue.add(float64(max(0, rep.GetQueueLength())), weight)
}

// Load returns the load. It returns false before the first report.
func (l *LoadTracker) Load() (topology.Load, bool) {
	return topology.Load{
		CPUMean: l.cpu.mean, CPUVariance: min(l.cpu.variance, 0.25),
		QueueMean: l.queue.mean, QueueVariance: l.queue.variance,
	}, l.reports > 0
}
