package engine

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

// Metrics are the metrics of an engine.
type Metrics struct {
	actions *prometheus.CounterVec
	allocs  *prometheus.GaugeVec
	tasks   prometheus.Gauge
	stale   prometheus.Counter
	checks  *prometheus.CounterVec
	queued  prometheus.Gauge
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	return &Metrics{
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nusa_agent_actions_total", Help: "Actions that were applied to bring the actual state to the desired one, by kind."}, []string{"kind"}),
		allocs:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "nusa_agent_allocations", Help: "Allocations on this node, by state."}, []string{"state"}),
		tasks:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "nusa_agent_tasks", Help: "Running tasks."}),
		stale:   prometheus.NewCounter(prometheus.CounterOpts{Name: "nusa_agent_stale_orders_total", Help: "Orders refused because the agent has a newer order."}),
		checks:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nusa_agent_checks_total", Help: "Checks of tasks, by result: passed, failed, or missed by the agent."}, []string{"result"}),
		queued:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "nusa_agent_checks_queued", Help: "Checks that are due and wait for other checks to end."}),
	}
}

// Register adds the metrics to a registry.
func (m *Metrics) Register(r *prometheus.Registry) {
	r.MustRegister(m.actions, m.allocs, m.tasks, m.stale, m.checks, m.queued)
}

// count sets the gauges of allocations and tasks.
func (m *Metrics) count(allocs map[string]*alloc, tasks int) {
	m.tasks.Set(float64(tasks))
	n := map[reconcile.State]int{}
	for _, a := range allocs {
		n[a.act.Reached]++
	}
	for s := reconcile.Pending; s <= reconcile.Stopped; s++ {
		m.allocs.WithLabelValues(s.String()).Set(float64(n[s]))
	}
}
