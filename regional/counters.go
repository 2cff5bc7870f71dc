package regional

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are the metrics of a regional server that count since its start.
type counters struct{ repairs *prometheus.CounterVec }

func newCounters() counters {
	return counters{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nusa_reconcile_repairs_total", Help: "Differences that were repaired, by tier and kind. 0 in a healthy federation.",
	}, []string{"tier", "kind"})}
}

// observeRepair counts a repair.
func (c counters) observeRepair(tier, kind string) { c.repairs.WithLabelValues(tier, kind).Inc() }

// register registers the metrics of a server.
func (c counters) register(s *server) error {
	lost := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nusa_audit_lost", Help: "Entries that were removed from the region's audit trail before the global tier had stored them.",
	}, func() float64 { return float64(s.fsm.View().Audit().Lost()) })
	return errors.Join(s.serve.Registry.Register(c.repairs), s.serve.Registry.Register(lost))
}
