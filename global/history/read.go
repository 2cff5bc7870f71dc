package history

import (
	"cmp"
	"slices"
)

// reading is what a History knows while the stored entries are still being read.
type reading struct {
	// certain are jobs that certainly have, or certainly do not have, an entry in the store.
	certain map[string]struct{}
	// read lists the entries that PutRead has added.
	read Departures
}

// Departures list jobs that have left memory.
type Departures []left

// Sort sorts the jobs in the order in which they left.
func (d Departures) Sort() {
	slices.SortFunc(d, func(a, b left) int { return cmp.Compare(a.revision, b.revision) })
}

// BeginReading notes that the store may have entries that are still to be read: see PutRead. Until
// Loaded is called, a job without an entry here may have one in the store.
func (h *History) BeginReading() { h.reading = &reading{certain: map[string]struct{}{}} }

// Unread reports whether stored entries are still being read.
func (h *History) Unread() bool { return h.reading != nil }

// Certain reports whether it is known for certain whether a job has an entry.
func (h *History) Certain(job string) bool {
	if h.reading == nil {
		return true
	}
	_, known := h.entries[job]
	if !known {
		_, known = h.reading.certain[job]
	}
	return known
}

// noteCertain notes that the present entry of a job, or its absence, is known.
func (h *History) noteCertain(job string) {
	if h.reading != nil {
		h.reading.certain[job] = struct{}{}
	}
}

// NoteAbsent notes that the store has no entry of a job.
func (h *History) NoteAbsent(job string) { h.noteCertain(job) }

// PutRead adds a stored entry that was read. It returns false and changes nothing if it is known
// already whether the job has an entry, because the entry may have changed since it was read.
func (h *History) PutRead(job string, e Entry) bool {
	if h.Certain(job) {
		return false
	}
	if h.entries == nil {
		h.entries = map[string]Entry{}
	}
	h.entries[job] = e
	h.bytes += e.Size
	h.reading.read = append(h.reading.read, left{job, e.Revision})
	return true
}

// Read returns the jobs whose entries PutRead has added. The caller passes them, sorted, to Loaded.
func (h *History) Read() Departures {
	if h.reading == nil {
		return nil
	}
	return h.reading.read
}

// Loaded notes that all stored entries were read. read are the sorted Read.
func (h *History) Loaded(read Departures) {
	if h.reading != nil {
		h.order, h.reading = append(read, h.order...), nil
	}
}
