package master

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of the sessions.
type Metrics struct {
	connected prometheus.Gauge
	sessions  prometheus.Counter
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	return &Metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "nusa_agent_connected", Help: "1 while the agent has a session with the region's master, else 0."}),
		sessions:  prometheus.NewCounter(prometheus.CounterOpts{Name: "nusa_agent_sessions_total", Help: "Sessions with a master that have begun."}),
	}
}

// Register adds the metrics to a registry.
func (m *Metrics) Register(r *prometheus.Registry) { r.MustRegister(m.connected, m.sessions) }
