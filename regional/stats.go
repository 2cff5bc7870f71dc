package regional

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxStats bounds what is kept of a node's statistics, in bytes.
	maxStats = 256 << 10
	// muchRoom times what they need is too much to be kept for them.
	muchRoom = 4
)

// nodeStats are a node's latest statistics: what the master itself reckons with,
// each five seconds for every node, and encoded the whole, which few ask for.
type nodeStats struct {
	raw []byte // empty where they are more than maxStats
	// age is how long ago they were measured, when they were sent or are asked for.
	age time.Duration

	cpu, load1, tasks       float64
	memory, memoryAvailable float64 // bytes
	// disk and diskAll are of all file systems, fullest of the fullest one.
	disk, diskAll float64
	fullest       struct{ used, total, share float64 }
	// in and out are bytes a second of all interfaces, of which there are some.
	in, out  float64
	networks int
}

// read takes an encoded NodeStats over, copied; on an error nothing.
func (n *nodeStats) read(raw []byte) error {
	next, err := readStats(raw)
	if err != nil {
		return err
	}
	if len(raw) <= maxStats {
		if cap(n.raw) <= muchRoom*len(raw) { // in the place of those before: there are thousands of both
			next.raw = n.raw[:0]
		}
		next.raw = append(next.raw, raw...)
	}
	*n = next
	return nil
}

// readStats is an encoded NodeStats, but for the whole.
func readStats(raw []byte) (n nodeStats, err error) {
	n.fullest.share = -1
	s := scan{rest: raw}
	for s.next() {
		switch s.num {
		case 1:
			n.cpu = math.Float64frombits(s.v)
		case 3:
			n.memory = float64(int64(s.v))
		case 4:
			n.memoryAvailable = float64(int64(s.v))
		case 6:
			f := numbers(&s, 3)
			n.addDisk(float64(int64(f[2])), float64(int64(f[3])))
		case 7:
			f := numbers(&s, 8)
			n.networks++
			n.in, n.out = n.in+math.Float64frombits(f[7]), n.out+math.Float64frombits(f[8])
		case 8:
			n.load1 = math.Float64frombits(s.v)
		case 12:
			n.tasks = float64(int32(s.v))
		case 13:
			f := numbers(&s, 2)
			n.age = max(0, time.Duration(f[1])*time.Second+time.Duration(f[2]))
		}
	}
	return n, s.err
}

func (n *nodeStats) addDisk(used, total float64) {
	n.disk, n.diskAll = n.disk+used, n.diskAll+total
	if full := share(used, total); total > 0 && full > n.fullest.share {
		n.fullest.used, n.fullest.total, n.fullest.share = used, total, full
	}
}

// numbers are the fields up to most of the message that a scan is at.
func numbers(of *scan, most int) (out [9]uint64) {
	s := scan{rest: of.b}
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

// wire is the whole, as people see it; nil where it was not kept.
func (n *nodeStats) wire() *nusav1.NodeStats {
	out := &nusav1.NodeStats{}
	if len(n.raw) == 0 || proto.Unmarshal(n.raw, out) != nil {
		return nil
	}
	return out
}

// values are the statistics as the history has them; what an agent does not know
// has no value.
func (n *nodeStats) values() []float64 {
	or := func(known bool, v float64) float64 {
		if !known {
			return math.NaN()
		}
		return v
	}
	memory, disk, network := n.memory+n.memoryAvailable > 0, n.fullest.total > 0, n.networks > 0
	return []float64{
		n.cpu, n.load1, or(memory, n.memory), or(memory, n.memoryAvailable),
		or(disk, n.fullest.used), or(disk, n.fullest.total), or(network, n.in), or(network, n.out), n.tasks,
	}
}
