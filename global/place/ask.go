package place

// GPU is an ask for accelerators.
type GPU struct {
	// Count of whole devices.
	Count int
	// Models that will do, empty = any.
	Models []string
	// ShareMilli: thousandths of one device, when Count is 0 or 1.
	ShareMilli int
}

// Ask is what one instance of a group needs of a node: the sum over its tasks.
type Ask struct {
	CPUMilli    int64
	MemoryBytes int64
	DiskBytes   int64
	GPU         GPU
	// Pool; empty = "default".
	Pool string
	// Drivers, Constraints and StaticPorts are sets: order and repetition do not
	// matter.
	Drivers     []string
	Constraints []string
	StaticPorts []int
	// DynamicPorts is how many ports of the node's range it takes.
	DynamicPorts int
	Dedicated    bool
}

// Hash names the ask: 64-bit FNV-1a over a canonical encoding, equal on every
// machine and in every version that knows the same fields. Never 0.
func (a Ask) Hash() uint64 { return 0 }

// Resources is what one instance is charged for.
func (a Ask) Resources() Resources { return Resources{} }
