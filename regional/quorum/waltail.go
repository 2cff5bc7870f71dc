package quorum

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

const stampSize = 8

// stamp is a random number of one log. Every record begins with the stamp and the number of
// the first record of the same write.
type stamp [stampSize]byte

func (s stamp) metadata() []byte {
	return fmt.Appendf(nil, "%s %d %x", walTag, walFormat, s)
}

func readStamp(metadata []byte) (s stamp, err error) {
	var tag, text string
	var format int
	if _, err := fmt.Sscan(string(metadata), &tag, &format, &text); err != nil || tag != walTag {
		return s, errors.New("its files are not those of a Raft log")
	}
	if format != walFormat {
		return s, fmt.Errorf("its format is %d, and this version knows %d", format, walFormat)
	}
	if n, err := hex.Decode(s[:], []byte(text)); err != nil || n != stampSize {
		return s, errors.New("its files are not those of a Raft log")
	}
	return s, nil
}

// repairTail truncates the rest of a write that a power cut tore. Such a write was never
// acknowledged. The library takes a zero, or a length that is too large, for the end of the
// log, whatever follows. The library's own Repair needs disk space for a copy of the file.
//
// A write begins only after all earlier writes were synced. So if a later write is found
// after the end, and its first record is not the next one, then acknowledged records in
// between are damaged, and repairTail returns an error.
func (l *walLog) repairTail() (err error) {
	names := glob(l.dir, "*.wal")
	if len(names) == 0 {
		return errors.New("it has no files")
	}
	name := names[len(names)-1]
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	last, rec := max(firstNumber(name), 1)-1, &walpb.Record{}
	var own stamp
	d := wal.NewDecoder(fileutil.NewFileReader(f))
	for err = d.Decode(rec); err == nil; err = d.Decode(rec) {
		switch rec.GetType() {
		case wal.CrcType:
			d.UpdateCRC(rec.GetCrc())
		case wal.MetadataType:
			own, err = readStamp(rec.GetData())
			if err != nil {
				return err
			}
		case wal.EntryType:
			last = wal.MustUnmarshalEntry(rec.GetData()).GetIndex()
		}
	}
	torn := errors.Is(err, io.ErrUnexpectedEOF)
	if !torn && !errors.Is(err, io.EOF) {
		return err
	}
	if own == (stamp{}) { // the library syncs the stamp before it gives the file its name
		return fmt.Errorf("%s is damaged where it begins", filepath.Base(name))
	}
	end := d.LastOffset()
	latest, err := latestWrite(io.NewSectionReader(f, end, 1<<62), own)
	switch {
	case err != nil:
		return err
	case latest > last+1:
		return fmt.Errorf("%s is damaged at byte %d, and later records follow", filepath.Base(name), end)
	case torn:
		err = f.Truncate(end)
	}
	// Raft counts the entries that are read here as stored. If the server was killed before
	// it synced them, they are only in the kernel's cache.
	return errors.Join(err, f.Sync(), syncDir(l.dir))
}

// latestWrite returns the largest number that follows the stamp s in r.
func latestWrite(r io.Reader, s stamp) (latest uint64, err error) {
	buf := make([]byte, 1<<16)
	kept := 0 // bytes from the last read in which a stamp may have begun
	for {
		n, err := io.ReadFull(r, buf[kept:])
		seen := buf[:kept+n]
		for {
			i := bytes.Index(seen, s[:])
			if i < 0 || len(seen) < i+stampSize+8 {
				break
			}
			latest = max(latest, binary.LittleEndian.Uint64(seen[i+stampSize:]))
			seen = seen[i+1:]
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return latest, nil
		}
		if err != nil {
			return 0, err
		}
		kept = copy(buf, buf[len(buf)-(stampSize+7):])
	}
}

// firstNumber returns the number of the first record in a file. The file's name contains
// that number.
func firstNumber(name string) (n uint64) {
	var seq uint64
	_, _ = fmt.Sscanf(filepath.Base(name), "%016x-%016x.wal", &seq, &n)
	return n
}
