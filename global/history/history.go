package history

// Entry is the part of an ended job that stays in memory.
type Entry struct {
	// Line is the encoded HistoryRecord.line.
	Line []byte
	// Revision is the revision of the stored record.
	Revision int64
	// Ended is when the job ended, in seconds since 1970.
	Ended int64
	// Size is the size of the stored record in bytes.
	Size int64
}

// History holds the jobs that have left memory. The zero value is empty.
type History struct {
	entries map[string]Entry
	// order lists the jobs in the order in which they left. It may also list jobs that have
	// returned since: their entry is gone or has another revision.
	order []left
	bytes int64
	// reading is nil once all stored entries were read: see BeginReading.
	reading *reading
}

type left struct {
	job      string
	revision int64
}

// Put adds the entry of a job, or replaces it. It returns the previous entry. had is false if
// there was none.
func (h *History) Put(job string, e Entry) (was Entry, had bool) {
	if h.entries == nil {
		h.entries = map[string]Entry{}
	}
	was, had = h.entries[job]
	h.bytes += e.Size - was.Size
	h.entries[job] = e
	h.order = append(h.order, left{job, e.Revision})
	if len(h.order) > 2*len(h.entries)+1024 {
		h.compact()
	}
	return was, had
}

// Delete removes the entry of a job, and returns it as Put does.
func (h *History) Delete(job string) (was Entry, had bool) {
	was, had = h.entries[job]
	h.bytes -= was.Size
	delete(h.entries, job)
	h.noteCertain(job)
	return was, had
}

// Get returns the entry of a job.
func (h *History) Get(job string) (e Entry, ok bool) {
	e, ok = h.entries[job]
	return e, ok
}

// Len returns the number of jobs.
func (h *History) Len() int { return len(h.entries) }

// Bytes returns the size of all stored records.
func (h *History) Bytes() int64 { return h.bytes }

func (h *History) compact() {
	kept := h.order[:0]
	for _, o := range h.order {
		if h.entries[o.job].Revision == o.revision {
			kept = append(kept, o)
		}
	}
	clear(h.order[len(kept):])
	h.order = kept
}

// Excess returns at most atOnce jobs that must be forgotten, oldest departure first. Jobs that
// ended earlier than before, in seconds since 1970, must be forgotten. So must the oldest jobs if
// there are more than most.
func (h *History) Excess(before int64, most, atOnce int) (jobs []string) {
	for len(h.order) > 0 && h.entries[h.order[0].job].Revision != h.order[0].revision {
		h.order = h.order[1:] // the job has returned, or was forgotten
	}
	for _, o := range h.order {
		e := h.entries[o.job]
		switch {
		case e.Revision != o.revision:
			continue
		case len(jobs) == atOnce || e.Ended >= before && len(h.entries)-len(jobs) <= most:
			return jobs
		}
		jobs = append(jobs, o.job)
	}
	return jobs
}
