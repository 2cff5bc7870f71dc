package feed

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/overview"
	"github.com/nusa-scheduler/nusa/topology"
)

// cells writes a row of the matrix.
func cells(v *topology.View, relays *overview.Relays, i int, into []overview.Cell) {
	for j := range into {
		if i == j {
			into[j] = overview.Cell{P50: overview.Unknown, P90: overview.Unknown, P99: overview.Unknown, Loss: overview.UnknownLoss}
			continue
		}
		e := v.EdgeAt(i, j)
		c := overview.Cell{P50: overview.Unknown, P90: overview.Unknown, P99: overview.Unknown, Loss: overview.UnknownLoss, State: uint8(e.State) | uint8(e.Source)<<3}
		if e.Source != topology.None {
			c.P50, c.P90, c.P99 = span(e.P50), span(e.P90), span(e.P99)
		}
		if e.Source == topology.Measured {
			c.Loss = uint8(min(max(e.Loss, 0), 1)*overview.LossSteps + 0.5)
		}
		if e.Doubt != "" {
			c.State |= overview.Doubted
		}
		if relays.Saves(i, j) {
			c.State |= overview.Relayed
		}
		into[j] = c
	}
}

func span(d time.Duration) uint16 {
	return uint16(min(max(0, d+overview.Unit/2)/overview.Unit, overview.Longest))
}
