package tasks

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// A journal is an append-only file. After journalMark it has frames:
//
//	length of the data (4), CRC-32C of the rest (4), place of the record's earlier piece or a mark (8), the data
//
// Numbers are big-endian. The data are a piece of a record, or the position of the history. A frame that is
// cut off or has another sum ends the journal: a server that opens it removes the rest.
const (
	journalMark = "nusaTJ1\n"
	frameHead   = 16
	// maxFrame bounds the data of a frame: a record has at most 32 changes and the states of its tasks.
	maxFrame = 4 << 20
	// firstPiece marks the first piece of a record, and positionFrame a position.
	firstPiece    = 0
	positionFrame = 1
	// readAhead is the number of bytes that are read at once: most frames are shorter.
	readAhead = 512
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errDamaged means that a file has content that this package did not write.
var errDamaged = errors.New("damaged file")

// journal is an open journal.
type journal struct {
	f    *os.File
	size int64
	// buf are frames that are not in the file yet. They follow its size.
	buf []byte
}

func appendFrame(b []byte, earlier int64, data []byte) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(earlier))
	b = append(b, data...)
	binary.BigEndian.PutUint32(b[at+4:], crc32.Checksum(b[at+8:], castagnoli))
	return b
}

// parseFrame returns the data of the frame at the beginning of b. size is what it takes. short says that b is
// too short for it.
func parseFrame(b []byte) (earlier int64, data []byte, size int, short bool, err error) {
	if len(b) < frameHead {
		return 0, nil, frameHead, true, nil
	}
	n := binary.BigEndian.Uint32(b)
	if n > maxFrame {
		return 0, nil, 0, false, fmt.Errorf("%w: a frame of %d bytes", errDamaged, n)
	}
	size = frameHead + int(n)
	if len(b) < size {
		return 0, nil, size, true, nil
	}
	if crc32.Checksum(b[8:size], castagnoli) != binary.BigEndian.Uint32(b[4:]) {
		return 0, nil, 0, false, fmt.Errorf("%w: the sum of a frame is wrong", errDamaged)
	}
	return int64(binary.BigEndian.Uint64(b[8:])), b[frameHead:size], size, false, nil
}

// add appends a frame. It returns its place.
func (j *journal) add(earlier int64, data []byte) int64 {
	at := j.size + int64(len(j.buf))
	j.buf = appendFrame(j.buf, earlier, data)
	return at
}

// flush writes the frames to the file, but does not wait for the disk.
func (j *journal) flush() error {
	if _, err := j.f.WriteAt(j.buf, j.size); err != nil {
		return err
	}
	j.size += int64(len(j.buf))
	j.buf = j.buf[:0]
	if cap(j.buf) > 1<<20 {
		j.buf = nil // the memory of a burst
	}
	return nil
}

// frame returns a frame.
func (j *journal) frame(at int64) (earlier int64, data []byte, err error) {
	var b []byte
	if at < int64(len(journalMark)) || at >= j.size+int64(len(j.buf)) {
		return 0, nil, fmt.Errorf("%w: no frame at %d", errDamaged, at)
	}
	if at >= j.size {
		b = j.buf[at-j.size:]
	} else if b, err = readSome(j.f, at, readAhead); err != nil {
		return 0, nil, err
	}
	earlier, data, size, short, err := parseFrame(b)
	if short && at < j.size {
		if b, err = readSome(j.f, at, size); err == nil {
			earlier, data, _, short, err = parseFrame(b)
		}
	}
	if short && err == nil {
		err = fmt.Errorf("%w: a frame is cut off", errDamaged)
	}
	return earlier, data, err
}

// readSome reads n bytes, or fewer at the end of the file.
func readSome(f io.ReaderAt, at int64, n int) ([]byte, error) {
	b := make([]byte, n)
	n, err := f.ReadAt(b, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return b[:n], nil
}

// record returns the pieces of a record, whose latest one is at a place.
func (j *journal) record(at int64) ([]byte, error) {
	var pieces [][]byte
	for at != firstPiece {
		earlier, data, err := j.frame(at)
		if err != nil {
			return nil, err
		}
		if earlier >= at || earlier == positionFrame {
			return nil, fmt.Errorf("%w: a piece follows a later one", errDamaged)
		}
		pieces, at = append(pieces, data), earlier
	}
	if len(pieces) == 1 {
		return pieces[0], nil
	}
	slices.Reverse(pieces)
	return slices.Concat(pieces...), nil
}

// readJournal calls visit for each frame of a file until one is damaged. It returns where the good ones end.
func readJournal(f *os.File, visit func(at, earlier int64, data []byte) error) (end int64, err error) {
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, 1<<62), 1<<20)
	mark := make([]byte, len(journalMark))
	if _, err := io.ReadFull(r, mark); err != nil || string(mark) != journalMark {
		return 0, fmt.Errorf("%w: no journal", errDamaged)
	}
	end = int64(len(journalMark))
	var b []byte
	for {
		b = slices.Grow(b[:0], frameHead)[:frameHead]
		if _, err := io.ReadFull(r, b); err != nil {
			return end, nil
		}
		n := binary.BigEndian.Uint32(b)
		if n > maxFrame {
			return end, nil
		}
		size := frameHead + int(n)
		b = slices.Grow(b, size-frameHead)[:size]
		if _, err := io.ReadFull(r, b[frameHead:]); err != nil {
			return end, nil
		}
		earlier, data, _, _, err := parseFrame(b)
		if err != nil {
			return end, nil
		}
		if err := visit(end, earlier, data); err != nil {
			return end, nil
		}
		end += int64(size)
	}
}

// writeFile creates a file with what fill writes. The file has its name only when all of it is on the disk.
func writeFile(path string, noSync bool, fill func(w *bufio.Writer) error) (err error) {
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 256<<10)
	if err = fill(w); err == nil {
		err = w.Flush()
	}
	if err == nil && !noSync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(path+".tmp", path); err != nil || noSync {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
