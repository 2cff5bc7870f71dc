package wire

import (
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// anyStats draws random statistics of a node. Some values are unknown.
var anyStats = rapid.Custom(func(t *rapid.T) *nusav1.NodeStats {
	bytes, part := rapid.Int64Range(0, 1<<40), rapid.Float64Range(0, 1e9)
	s := &nusav1.NodeStats{
		Cpu: part.Draw(t, "cpu"), CpuPerCore: rapid.SliceOfN(part, 0, 3).Draw(t, "per core"),
		MemoryUsedBytes: bytes.Draw(t, "used"), MemoryAvailableBytes: bytes.Draw(t, "available"), SwapUsedBytes: bytes.Draw(t, "swap"),
		Load1: part.Draw(t, "load"), Load5: 5, Load15: 15, Tasks: rapid.Int32().Draw(t, "tasks"),
	}
	if rapid.Bool().Draw(t, "aged") {
		s.Age = durationpb.New(time.Duration(rapid.Int64Range(-1e12, 1e12).Draw(t, "age")))
	}
	for range rapid.IntRange(0, 3).Draw(t, "disks") {
		s.Disks = append(s.Disks, &nusav1.DiskStats{Mount: "/", UsedBytes: bytes.Draw(t, "disk used"), TotalBytes: bytes.Draw(t, "disk total")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "networks") {
		s.Networks = append(s.Networks, &nusav1.NetworkStats{
			Name: "eth0", BytesIn: 1 << 60, Errors: 3, InPerSecond: part.Draw(t, "in"), OutPerSecond: part.Draw(t, "out"),
		})
	}
	return s
})

// TestStatsEqualTheMessage: the figures equal those of the message, and the whole message
// is stored.
func TestStatsEqualTheMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyStats.Draw(t, "stats")
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got := NodeStats{Raw: []byte("the previous ones")}
		if err := got.Read(raw); err != nil {
			t.Fatal(err)
		}
		var disk, diskAll, in, out float64
		fullUsed, fullTotal, fullest := math.NaN(), math.NaN(), -1.0
		for _, d := range m.Disks {
			used, total := float64(d.UsedBytes), float64(d.TotalBytes)
			disk, diskAll = disk+used, diskAll+total
			if total > 0 && used/total > fullest {
				fullUsed, fullTotal, fullest = used, total, used/total
			}
		}
		for _, n := range m.Networks {
			in, out = in+n.InPerSecond, out+n.OutPerSecond
		}
		if got.DiskUsed != disk || got.DiskTotal != diskAll || got.NetworkIn != in || got.NetworkOut != out || got.Age != max(0, m.GetAge().AsDuration()) {
			t.Fatalf("%+v of %v", got, m)
		}
		want := []float64{m.Cpu, m.Load1, float64(m.MemoryUsedBytes), float64(m.MemoryAvailableBytes), fullUsed, fullTotal, in, out, float64(m.Tasks)}
		if m.MemoryUsedBytes+m.MemoryAvailableBytes == 0 {
			want[2], want[3] = math.NaN(), math.NaN()
		}
		if len(m.Networks) == 0 {
			want[6], want[7] = math.NaN(), math.NaN()
		}
		same := func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }
		if !slices.EqualFunc(got.Values(), want, same) {
			t.Fatalf("values %v, want %v", got.Values(), want)
		}
		if !proto.Equal(got.ToProto(), m) {
			t.Fatalf("the stored message is %v, want %v", got.ToProto(), m)
		}
	})
}

// TestLargeStatsAreNotStored: of statistics over maxStatsBytes only the figures are stored.
func TestLargeStatsAreNotStored(t *testing.T) {
	m := &nusav1.NodeStats{Cpu: 0.5}
	for range 20_000 {
		m.Disks = append(m.Disks, &nusav1.DiskStats{Mount: "/some/where", UsedBytes: 1, TotalBytes: 2})
	}
	raw, err := proto.Marshal(m)
	if err != nil || len(raw) <= maxStatsBytes {
		t.Fatal(len(raw), err)
	}
	var got NodeStats
	if err := got.Read(raw); err != nil || got.ToProto() != nil || got.CPU != 0.5 || got.DiskTotal != 40_000 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := got.Read(raw[:len(raw)-1]); err == nil || got.DiskTotal != 40_000 {
		t.Error("a truncated message was read")
	}
	// A buffer that is much larger than the statistics is replaced. A smaller one is used
	// again.
	for _, disks := range []int{5000, 10, 10} {
		before := got.Raw
		m.Disks = m.Disks[:disks]
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := got.Read(raw); err != nil || len(got.ToProto().GetDisks()) != disks || cap(got.Raw) > maxStatsSlack*len(raw) {
			t.Errorf("%d disks: %d bytes in a buffer of %d: %v", disks, len(raw), cap(got.Raw), err)
		}
		if len(before) == len(got.Raw) && &before[0] != &got.Raw[0] {
			t.Error("the buffer was not reused")
		}
	}
}
