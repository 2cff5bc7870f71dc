package overview

import "slices"

// View is what one reader sees. Two views of a reader share what has not changed. A nil
// entry or matrix means that the reader does not get it.
type View struct {
	Head, Counts *Entry
	Regions      Section
	// Due and Errors are short lists that are always sent whole.
	Due, Errors Section
	Nodes, Jobs Section
	Matrix      *Matrix
}

// Message is a part of a snapshot, or of the changes.
type Message struct {
	// Reset: forget everything that came before. Synced: nothing more follows for now.
	Reset, Synced bool
	Head, Counts  *Entry
	Regions, Gone []*Entry
	// Due and Errors are nil if they have not changed.
	Due, Errors     *Section
	Nodes, NodesOff []*Entry
	Jobs, JobsOff   []*Entry
	Columns         []string
	Rows            []Row
}

// Updates returns the messages that lead a reader from one view to another. was is nil for a
// new reader. A message has about most bytes: it ends with the entry that reaches most.
// Without a change there is no message.
func Updates(was *View, is View, most int) []Message {
	b := &builder{most: most}
	old := View{}
	if was == nil {
		b.now.Reset = true
		b.size = 1
	} else {
		old = *was
	}
	if is.Head != nil && is.Head != old.Head {
		b.now.Head = is.Head
		b.add(is.Head.Size)
	}
	if is.Counts != nil && is.Counts != old.Counts {
		b.now.Counts = is.Counts
		b.add(is.Counts.Size)
	}
	b.list(is.Due, old.Due, was == nil, func(m *Message, s *Section) { m.Due = s })
	b.list(is.Errors, old.Errors, was == nil, func(m *Message, s *Section) { m.Errors = s })
	b.section(is.Regions, old.Regions, func(m *Message) (changed, gone *[]*Entry) { return &m.Regions, &m.Gone })
	b.section(is.Jobs, old.Jobs, func(m *Message) (changed, gone *[]*Entry) { return &m.Jobs, &m.JobsOff })
	b.section(is.Nodes, old.Nodes, func(m *Message) (changed, gone *[]*Entry) { return &m.Nodes, &m.NodesOff })
	b.matrix(is.Matrix, old.Matrix)
	return b.end()
}

// builder collects messages.
type builder struct {
	most, size int
	now        Message
	out        []Message
}

// add counts what was added to the present message, and begins a new message if it is full.
func (b *builder) add(size int) {
	b.size += max(1, size)
	if b.size >= b.most {
		b.out, b.now, b.size = append(b.out, b.now), Message{}, 0
	}
}

func (b *builder) end() []Message {
	if b.size > 0 {
		b.out = append(b.out, b.now)
	}
	if len(b.out) > 0 {
		b.out[len(b.out)-1].Synced = true
	}
	return b.out
}

// list adds a short list if it has changed.
func (b *builder) list(is, was Section, first bool, set func(*Message, *Section)) {
	if slices.Equal(is, was) && (!first || len(is) == 0) {
		return
	}
	size := 1
	for _, e := range is {
		size += e.Size
	}
	set(&b.now, &is)
	b.add(size)
}

// section adds the changes of a section. Removals come first, because a message of changes
// may replace what was removed.
func (b *builder) section(is, was Section, lists func(*Message) (changed, gone *[]*Entry)) {
	if len(is) == len(was) && (len(is) == 0 || &is[0] == &was[0]) {
		return
	}
	changed, gone := is.changes(was)
	for _, e := range gone {
		_, to := lists(&b.now)
		*to = append(*to, e)
		b.add(len(e.Key) + 8)
	}
	for _, e := range changed {
		to, _ := lists(&b.now)
		*to = append(*to, e)
		b.add(e.Size)
	}
}

func (b *builder) matrix(is, was *Matrix) {
	if is == nil || is == was {
		return
	}
	if was == nil || !slices.Equal(was.Names, is.Names) {
		was = nil
		b.now.Columns = is.Names
		size := 0
		for _, name := range is.Names {
			size += len(name) + 2
		}
		b.add(size)
	}
	for _, r := range is.changes(was) {
		b.now.Rows = append(b.now.Rows, r)
		b.add(r.size())
	}
}
