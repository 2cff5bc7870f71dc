package wire

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxStatsBytes bounds the stored encoded statistics of a node.
	maxStatsBytes = 256 << 10
	// maxStatsSlack bounds the capacity of the reused buffer, as a multiple of the size
	// of the statistics in it.
	maxStatsSlack = 4
)

// NodeStats are a node's latest statistics: the figures that the master uses, and
// the whole message, still encoded.
type NodeStats struct {
	Raw []byte // the whole message; empty where it exceeds maxStatsBytes
	// Age is the age of the statistics at the time of sending, or of reading.
	Age time.Duration

	CPU, Load1, Tasks           float64
	MemoryUsed, MemoryAvailable float64 // bytes
	// DiskUsed and DiskTotal are sums over all file systems; fullest has the
	// values of the fullest file system.
	DiskUsed, DiskTotal float64
	fullest             struct{ used, total, share float64 }
	// NetworkIn and NetworkOut are the bytes a second of all interfaces; networks
	// counts the interfaces.
	NetworkIn, NetworkOut float64
	networks              int
}

// Read decodes a NodeStats and copies it. On an error n is unchanged.
func (n *NodeStats) Read(raw []byte) error {
	next, err := readStats(raw)
	if err != nil {
		return err
	}
	if len(raw) <= maxStatsBytes {
		if cap(n.Raw) <= maxStatsSlack*len(raw) { // reuse the buffer: there is one for each node
			next.Raw = n.Raw[:0]
		}
		next.Raw = append(next.Raw, raw...)
	}
	*n = next
	return nil
}

// readStats decodes the figures of a NodeStats.
func readStats(raw []byte) (n NodeStats, err error) {
	n.fullest.share = -1
	s := fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case statsCPU:
			n.CPU = math.Float64frombits(s.v)
		case statsMemoryUsed:
			n.MemoryUsed = float64(int64(s.v))
		case statsMemoryAvailable:
			n.MemoryAvailable = float64(int64(s.v))
		case statsDisks:
			f := readNumbers(&s)
			n.addDisk(float64(int64(f[diskUsed])), float64(int64(f[diskTotal])))
		case statsNetworks:
			f := readNumbers(&s)
			n.networks++
			n.NetworkIn += math.Float64frombits(f[networkInPerSecond])
			n.NetworkOut += math.Float64frombits(f[networkOutPerSecond])
		case statsLoad1:
			n.Load1 = math.Float64frombits(s.v)
		case statsTasks:
			n.Tasks = float64(int32(s.v))
		case statsAge:
			f := readNumbers(&s)
			n.Age = max(0, time.Duration(f[durationSeconds])*time.Second+time.Duration(f[durationNanos]))
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

// readNumbers returns the numeric fields 1..8, by their numbers, of the message at the
// scanner's position.
func readNumbers(of *fieldScanner) (out [networkOutPerSecond + 1]uint64) {
	s := fieldScanner{rest: of.b}
	for s.next() {
		if s.num > 0 && int(s.num) < len(out) {
			out[s.num] = s.v
		}
	}
	if s.err != nil {
		of.err = s.err
	}
	return out
}

// ToProto decodes the whole message; nil if it was too large to be stored.
func (n *NodeStats) ToProto() *nusav1.NodeStats {
	out := &nusav1.NodeStats{}
	if len(n.Raw) == 0 || proto.Unmarshal(n.Raw, out) != nil {
		return nil
	}
	return out
}

// Values returns the statistics in the order of metrics.Kinds; values that the agent did
// not report are NaN.
func (n *NodeStats) Values() []float64 {
	valueIf := func(known bool, v float64) float64 {
		if !known {
			return math.NaN()
		}
		return v
	}
	memory, disk, network := n.MemoryUsed+n.MemoryAvailable > 0, n.fullest.total > 0, n.networks > 0
	return []float64{
		n.CPU, n.Load1, valueIf(memory, n.MemoryUsed), valueIf(memory, n.MemoryAvailable),
		valueIf(disk, n.fullest.used), valueIf(disk, n.fullest.total), valueIf(network, n.NetworkIn), valueIf(network, n.NetworkOut), n.Tasks,
	}
}
