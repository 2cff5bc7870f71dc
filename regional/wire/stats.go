package wire

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxStatsBytes bounds what is kept of a node's statistics, in bytes.
	maxStatsBytes = 256 << 10
	// maxStatsGrowth times what they need is too much to be kept for them.
	maxStatsGrowth = 4
)

// NodeStats are a node's latest statistics: what the master itself reckons with,
// each five seconds for every node, and encoded the whole, which few ask for.
type NodeStats struct {
	Raw []byte // empty where they are more than maxStatsBytes
	// Age is how long ago they were measured, when they were sent or are asked for.
	Age time.Duration

	CPU, Load1, Tasks           float64
	MemoryUsed, MemoryAvailable float64 // bytes
	// DiskUsed and DiskTotal are of all file systems, fullest of the fullest one.
	DiskUsed, DiskTotal float64
	fullest             struct{ used, total, share float64 }
	// NetworkIn and out are bytes a second of all interfaces, of which there are some.
	NetworkIn, NetworkOut float64
	networks              int
}

// Read takes an encoded NodeStats over, copied; on an error nothing.
func (n *NodeStats) Read(raw []byte) error {
	next, err := readStats(raw)
	if err != nil {
		return err
	}
	if len(raw) <= maxStatsBytes {
		if cap(n.Raw) <= maxStatsGrowth*len(raw) { // in the place of those before: there are thousands of both
			next.Raw = n.Raw[:0]
		}
		next.Raw = append(next.Raw, raw...)
	}
	*n = next
	return nil
}

// readStats is an encoded NodeStats, but for the whole.
func readStats(raw []byte) (n NodeStats, err error) {
	n.fullest.share = -1
	s := fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case 1:
			n.CPU = math.Float64frombits(s.v)
		case 3:
			n.MemoryUsed = float64(int64(s.v))
		case 4:
			n.MemoryAvailable = float64(int64(s.v))
		case 6:
			f := numbers(&s, 3)
			n.addDisk(float64(int64(f[2])), float64(int64(f[3])))
		case 7:
			f := numbers(&s, 8)
			n.networks++
			n.NetworkIn, n.NetworkOut = n.NetworkIn+math.Float64frombits(f[7]), n.NetworkOut+math.Float64frombits(f[8])
		case 8:
			n.Load1 = math.Float64frombits(s.v)
		case 12:
			n.Tasks = float64(int32(s.v))
		case 13:
			f := numbers(&s, 2)
			n.Age = max(0, time.Duration(f[1])*time.Second+time.Duration(f[2]))
		}
	}
	return n, s.err
}

func (n *NodeStats) addDisk(used, total float64) {
	n.DiskUsed, n.DiskTotal = n.DiskUsed+used, n.DiskTotal+total
	if total <= 0 {
		return
	}
	if share := used / total; share > n.fullest.share {
		n.fullest.used, n.fullest.total, n.fullest.share = used, total, share
	}
}

// numbers are the fields up to most of the message that a scan is at.
func numbers(of *fieldScanner, most int) (out [9]uint64) {
	s := fieldScanner{rest: of.b}
	for s.next() {
		if s.num > 0 && int(s.num) <= most {
			out[s.num] = s.v
		}
	}
	if s.err != nil {
		of.err = s.err
	}
	return out
}

// ToProto is the whole, as people see it; nil where it was not kept.
func (n *NodeStats) ToProto() *nusav1.NodeStats {
	out := &nusav1.NodeStats{}
	if len(n.Raw) == 0 || proto.Unmarshal(n.Raw, out) != nil {
		return nil
	}
	return out
}

// Values are the statistics as the history has them; what an agent does not know
// has no value.
func (n *NodeStats) Values() []float64 {
	or := func(known bool, v float64) float64 {
		if !known {
			return math.NaN()
		}
		return v
	}
	memory, disk, network := n.MemoryUsed+n.MemoryAvailable > 0, n.fullest.total > 0, n.networks > 0
	return []float64{
		n.CPU, n.Load1, or(memory, n.MemoryUsed), or(memory, n.MemoryAvailable),
		or(disk, n.fullest.used), or(disk, n.fullest.total), or(network, n.NetworkIn), or(network, n.NetworkOut), n.Tasks,
	}
}
