package raftlog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"runtime"
	"slices"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// formatVersion is the first byte of every log entry and snapshot. Version 1 stored the
// fields of a struct by name, version 2 stores them by position. A build reads its own
// version and the one before it.
const formatVersion = 2

// MaxEntryBytes bounds a log entry of several commands. A single command may be larger.
const MaxEntryBytes = 256 << 10

// ErrFormat says that this build cannot read the format of a log entry or snapshot.
var ErrFormat = errors.New("unknown format")

// msgpackHandle holds the settings of the format. A struct is stored as the list of its
// fields, because field names would be two thirds of the log. A later version may add
// fields at the end of the list (testdata/log_format.txt). Maps are sorted, so that equal
// values have equal bytes. All encoders share the handle, because it caches type
// information.
var msgpackHandle = newMsgpackHandle()

func newMsgpackHandle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true}
	h.Canonical, h.StructToArray = true, true
	return h
}

// entryWriter encodes log entries. An entry is the version, then each command after its
// length. An entryWriter is not safe for concurrent use.
type entryWriter struct {
	entry   []byte // empty: no command yet
	command []byte // the latest command
}

// add adds a command. It returns false when the command would make the entry larger than
// MaxEntryBytes.
func (w *entryWriter) add(cmd *state.Command) bool {
	w.command = appendMsgpack(w.command[:0], reflect.ValueOf(cmd))
	if len(w.entry) == 0 {
		w.entry = append(w.entry, formatVersion)
	} else if len(w.entry)+len(w.command) > MaxEntryBytes {
		return false
	}
	w.entry = binary.AppendUvarint(w.entry, uint64(len(w.command)))
	w.entry = append(w.entry, w.command...)
	return true
}

// Entry returns a log entry with one command.
func Entry(cmd *state.Command) []byte {
	var w entryWriter
	w.add(cmd)
	return w.finish()
}

// finish returns the entry, nil when it has no command, and begins the next one.
func (w *entryWriter) finish() []byte {
	if len(w.entry) == 0 {
		return nil
	}
	entry := slices.Clone(w.entry)
	w.entry = w.entry[:0]
	if cap(w.entry) > 2*MaxEntryBytes { // the entry was a single larger command
		w.entry, w.command = nil, nil
	}
	return entry
}

func readable(version byte) bool { return version == formatVersion || version == formatVersion-1 }

// decodeEntry decodes an entry that an entryWriter encoded.
func decodeEntry(entry []byte) ([]state.Command, error) {
	if len(entry) == 0 {
		return nil, fmt.Errorf("%w: empty log entry", ErrFormat)
	}
	if !readable(entry[0]) {
		return nil, fmt.Errorf("%w: log entry of version %d, this build reads %d: run the build that wrote it", ErrFormat, entry[0], formatVersion)
	}
	var out []state.Command
	for rest := entry[1:]; len(rest) > 0; {
		n, used := binary.Uvarint(rest)
		if used <= 0 || n > uint64(len(rest)-used) {
			return nil, fmt.Errorf("%w: log entry is cut short", ErrFormat)
		}
		var cmd state.Command
		if err := codec.NewDecoderBytes(rest[used:used+int(n)], msgpackHandle).Decode(&cmd); err != nil {
			return nil, fmt.Errorf("%w: log entry: %w", ErrFormat, err)
		}
		out = append(out, cmd)
		rest = rest[used+int(n):]
	}
	return out, nil
}

// recordsPerYield is how many records are written before the writer yields the processor. A
// record takes some µs, and the scheduler's decisions must not wait for the end of the
// writer's time slice.
const recordsPerYield = 32

// writeSnapshot writes the version, then each record.
func writeSnapshot(w io.Writer, view *state.View) error {
	buf := bufio.NewWriterSize(w, 256<<10)
	if err := buf.WriteByte(formatVersion); err != nil {
		return err
	}
	var record []byte
	n := 0
	for r := range view.Records() {
		record = appendMsgpack(record[:0], reflect.ValueOf(&r))
		if _, err := buf.Write(record); err != nil {
			return err
		}
		if n++; n%recordsPerYield == 0 {
			runtime.Gosched()
		}
	}
	return buf.Flush()
}

// readSnapshot decodes a snapshot that writeSnapshot wrote.
func readSnapshot(r io.Reader) (*state.State, error) {
	in := bufio.NewReaderSize(r, 256<<10)
	version, err := in.ReadByte()
	if err != nil {
		return nil, fmt.Errorf("read a snapshot: %w", err)
	}
	if !readable(version) {
		return nil, fmt.Errorf("%w: snapshot of version %d, this build reads %d: run the build that wrote it", ErrFormat, version, formatVersion)
	}
	return state.Restore(records(in))
}

func records(in *bufio.Reader) iter.Seq2[state.Record, error] {
	return func(yield func(state.Record, error) bool) {
		dec := codec.NewDecoder(in, msgpackHandle)
		for {
			if _, err := in.Peek(1); errors.Is(err, io.EOF) {
				return
			}
			var r state.Record
			err := dec.Decode(&r)
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}
