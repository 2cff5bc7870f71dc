package intakes

import "github.com/prometheus/client_golang/prometheus"

// Metrics count what intakes do, from the start of the process.
type Metrics struct {
	taken, dead, failures prometheus.Counter
}

// NewMetrics returns metrics that are zero.
func NewMetrics() *Metrics {
	return &Metrics{
		taken: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_intake_taken_total", Help: "Messages of brokers whose job was stored."}),
		dead: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_intake_dead_total", Help: "Messages of brokers that went to a dead-letter queue or subject."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_intake_failures_total", Help: "Attempts of intakes that failed and are made again."}),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.taken.Describe(ch)
	m.dead.Describe(ch)
	m.failures.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.taken.Collect(ch)
	m.dead.Collect(ch)
	m.failures.Collect(ch)
}
