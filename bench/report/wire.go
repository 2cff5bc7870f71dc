package report

import (
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// RegionName is the name of the region whose servers and agents a benchmark starts.
	RegionName = "bench"
	// ProtocolVersion is the version of the agents' protocol that a benchmark speaks.
	ProtocolVersion = 1
)

func PositionToProto(p link.Position) *nusav1.Position {
	return &nusav1.Position{Epoch: p.Epoch, Sequence: p.Sequence}
}

func PositionFromProto(p *nusav1.Position) link.Position {
	return link.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
}
