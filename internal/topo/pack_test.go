package topo

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/series"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestPack: a block has the means of all series at their times, and is a tenth of the series.
func TestPack(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	point := func(v float64) series.Point { return series.Point{Count: 3, Mean: v, Min: v, Max: v} }
	fields := []string{"p50_ms", "loss"}
	all := []series.Series{
		{Key: "a", Fields: fields, Start: begin, Step: time.Minute, Points: [][]series.Point{{point(12.34), {}, point(1e9)}, {point(0.5), point(math.NaN()), {}}}},
		{Key: "b", Fields: []string{"p50_ms"}, Start: begin.Add(time.Minute), Step: time.Minute, Points: [][]series.Point{{point(-1), point(7), point(8)}}},
	}
	b := Pack(all, fields)
	if b.GetPoints() != 4 || !b.GetStart().AsTime().Equal(begin) || b.GetStep().AsDuration() != time.Minute || len(b.GetKeys()) != 2 {
		t.Fatalf("%v", b)
	}
	const none = noValue
	for i, want := range [][]uint16{{123, none, noValue - 1, none, none, 0, 70, 80}, {100, none, none, none, none, none, none, none}} {
		c := b.GetColumns()[i]
		for k, w := range want {
			if got := binary.LittleEndian.Uint16(c.GetValues()[2*k:]); got != w {
				t.Errorf("%s: value %d is %d, want %d", c.GetName(), k, got, w)
			}
		}
	}
	if Pack(nil, fields) != nil {
		t.Error("no series have a block")
	}

	all = nil
	long := 0
	for range 100 {
		s := series.Series{Key: "westeurope-1", Kind: "edge", Fields: fields, Start: begin, Step: time.Minute}
		one := &nusav1.HistorySeries{Key: s.Key}
		for _, name := range fields {
			row, f := make([]series.Point, 48), &nusav1.HistoryField{Name: name}
			for i := range row {
				v := float64(i) * 1.1
				row[i] = point(v)
				f.Mean, f.Min, f.Max, f.Count = append(f.Mean, v), append(f.Min, v), append(f.Max, v), append(f.Count, 3)
			}
			s.Points, one.Fields = append(s.Points, row), append(one.Fields, f)
		}
		all, long = append(all, s), long+proto.Size(one)
	}
	if short := proto.Size(Pack(all, fields)); short*10 > long {
		t.Errorf("a block has %d bytes, the series %d", short, long)
	}
}
