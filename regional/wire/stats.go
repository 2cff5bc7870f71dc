package wire

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxStatsBytes bounds the encoded statistics that are stored for a node.
	maxStatsBytes = 256 << 10
	// maxStatsSlack bounds the capacity of a buffer that is used again: it is at most
	// maxStatsSlack times the size of the new statistics.
	maxStatsSlack = 4
)

// NodeStats holds a node's latest statistics: the figures that the master uses, and the
// whole message, still encoded.
type NodeStats struct {
	Raw []byte // the whole message; empty if it is larger than maxStatsBytes
	// Age is the age of the statistics: after Read at the time of sending, after
	// Agents.Stats at the time of the call.
	Age time.Duration

	CPU, Load1, Tasks           float64
	MemoryUsed, MemoryAvailable float64 // bytes
	// DiskUsed and DiskTotal are sums over all file systems. fullest is the fullest file
	// system.
	DiskUsed, DiskTotal float64
	fullest             struct{ used, total, share float64 }
	// NetworkIn and NetworkOut are the bytes a second, summed over all interfaces. networks
	// is the number of interfaces.
	NetworkIn, NetworkOut float64
	networks              int
}

// Read decodes a NodeStats and stores a copy of it in n. After an error n is unchanged.
func (n *NodeStats) Read(raw []byte) error {
	next, err := readStats(raw)
	if err != nil {
		return err
	}
	if len(raw) <= maxStatsBytes {
		if cap(n.Raw) <= maxStatsSlack*len(raw) { // use the buffer again: there is one for each node
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

// readNumbers reads the message at the scanner's position. It returns the values of the
// numeric fields 1..8, by field number.
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

// ToProto decodes the whole message. It returns nil if the message was too large to be
// stored.
func (n *NodeStats) ToProto() *nusav1.NodeStats {
	out := &nusav1.NodeStats{}
	if len(n.Raw) == 0 || proto.Unmarshal(n.Raw, out) != nil {
		return nil
	}
	return out
}

// Values returns the statistics in the order of metrics.Kinds. A value that the agent did
// not report is NaN.
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
