package buses

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what the delivery does, from the start of the process. They have no names of buses,
// because there may be many.
type Metrics struct {
	published prometheus.Counter
	failures  prometheus.Counter
	dropped   prometheus.Counter
	lag       prometheus.Gauge
	seconds   prometheus.Histogram
}

// NewMetrics returns metrics that are zero.
func NewMetrics() *Metrics {
	return &Metrics{
		published: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_bus_published_total", Help: "Events that brokers confirmed."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_bus_failures_total", Help: "Attempts to publish that failed."}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_bus_dropped_total", Help: "Events that retention removed before they were published to a bus."}),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nusa_bus_lag_events", Help: "Events that the bus that is furthest behind has not handled."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "nusa_bus_publish_seconds", Help: "Time until a broker confirmed or refused a batch of events.", Buckets: prometheus.ExponentialBuckets(0.001, 3, 10)}), // 1 ms .. 20 s
	}
}

func (m *Metrics) observe(confirmed int, took time.Duration) {
	m.published.Add(float64(confirmed))
	m.seconds.Observe(took.Seconds())
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.published, m.failures, m.dropped, m.lag, m.seconds}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}
