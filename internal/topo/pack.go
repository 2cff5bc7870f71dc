package topo

import (
	"encoding/binary"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/series"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// noValue is a point without a value in a block.
const noValue = math.MaxUint16

// unitOf returns the unit of a field of edges in a block.
func unitOf(field string) float64 {
	if strings.HasSuffix(field, "_ms") {
		return 0.1
	}
	return 0.005
}

// Pack returns the means of series as a block, which has the step of the first one: all have the same, unless
// the store has begun another window since the first was read. It is nil if there are no series.
func Pack(all []series.Series, fields []string) *nusav1.HistoryBlock {
	if len(all) == 0 || all[0].Step <= 0 {
		return nil
	}
	step := all[0].Step
	begin, end := all[0].Start, all[0].Start
	for i := range all {
		s := &all[i]
		if s.Start.Before(begin) {
			begin = s.Start
		}
		if last := s.Start.Add(time.Duration(lengthOf(s, fields)) * s.Step); last.After(end) {
			end = last
		}
	}
	points := int((end.Sub(begin) + step - 1) / step)
	out := &nusav1.HistoryBlock{Start: timestamppb.New(begin), Step: durationpb.New(step), Points: int32(points)}
	for i := range all {
		out.Keys = append(out.Keys, all[i].Key)
	}
	for _, name := range fields {
		c := &nusav1.HistoryColumn{Name: name, Unit: unitOf(name), Values: make([]byte, 2*points*len(all))}
		for i := range c.GetValues() {
			c.Values[i] = math.MaxUint8 // no value
		}
		for i := range all {
			s := &all[i]
			for k, p := range s.Field(name) {
				if p.Count > 0 {
					at := int((s.Start.Sub(begin) + time.Duration(k)*s.Step) / step)
					binary.LittleEndian.PutUint16(c.Values[2*(i*points+at):], inUnits(p.Mean, c.GetUnit()))
				}
			}
		}
		out.Columns = append(out.Columns, c)
	}
	return out
}

// lengthOf returns the number of points of a series.
func lengthOf(s *series.Series, fields []string) (n int) {
	for _, name := range fields {
		n = max(n, len(s.Field(name)))
	}
	return n
}

// inUnits returns a value as a number of units. What is no number has no value.
func inUnits(v, unit float64) uint16 {
	if math.IsNaN(v) {
		return noValue
	}
	return uint16(min(max(math.Round(v/unit), 0), noValue-1))
}
