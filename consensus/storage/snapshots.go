package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/crc64"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	snapshotsName   = "snapshots" // the name that raft.FileSnapshotStore uses
	damagedName     = "damaged"   // damaged snapshots that were not needed
	snapshotMeta    = "meta.json"
	snapshotState   = "state.bin"
	snapshotSum     = "meta.sum"
	maxSnapshotMeta = 4 << 20
)

// RetainSnapshots is how many snapshots a storage keeps. raftnode.Snapshots removes those that are not needed before.
const RetainSnapshots = 4

// snapshots is a raft.SnapshotStore over raft.FileSnapshotStore. That checks a snapshot's content, but not
// its index, term and configuration in meta.json. The file meta.sum with the checksum of meta.json covers
// those. Close writes meta.sum last, and a snapshot exists once it is written.
type snapshots struct {
	path  string
	store *raft.FileSnapshotStore
}

func openSnapshots(dir string, logger hclog.Logger) (*snapshots, error) {
	path := filepath.Join(dir, snapshotsName)
	if err := makePrivate(path); err != nil {
		logger.Warn("cannot keep other users of this machine out of the snapshots", "path", path, "error", err)
	}
	store, err := raft.NewFileSnapshotStoreWithLogger(dir, RetainSnapshots, logger.Named("snapshots"))
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	return &snapshots{path: path, store: store}, nil
}

// makePrivate keeps other users out of a directory, and makes it if it is missing: the library would let them read all
// that it writes there. It fails for a directory of another user.
func makePrivate(path string) error {
	if err := os.Mkdir(path, 0o700); !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return err
	}
	return os.Chmod(path, 0o700)
}

// Create starts a snapshot.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, trans raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.store.Create(version, index, term, configuration, configurationIndex, trans)
	if err != nil {
		return nil, err
	}
	sealed := &checksummedSink{SnapshotSink: sink, path: filepath.Join(s.path, sink.ID())}
	if sealed.file, err = os.Open(filepath.Join(sealed.path+tempSuffix, snapshotState)); err != nil {
		return nil, errors.Join(err, sink.Cancel())
	}
	return sealed, nil
}

// List returns the snapshots that exist, newest first.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	metas, err := s.store.List()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(metas, func(m *raft.SnapshotMeta) bool {
		_, err := readSnapshotMeta(filepath.Join(s.path, m.ID))
		return err != nil
	}), nil
}

// Open verifies all of a snapshot and opens it.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if id != filepath.Base(id) {
		return nil, nil, fmt.Errorf("snapshot %q: %w", id, os.ErrNotExist)
	}
	if _, err := readSnapshotMeta(filepath.Join(s.path, id)); err != nil {
		return nil, nil, err
	}
	return s.store.Open(id)
}

// Remove removes a snapshot.
func (s *snapshots) Remove(id string) error {
	if id != filepath.Base(id) {
		return fmt.Errorf("snapshot %q: %w", id, os.ErrNotExist)
	}
	// Without its meta.sum the snapshot does not exist, even if a crash leaves its other files.
	path := filepath.Join(s.path, id)
	if err := os.Remove(filepath.Join(path, snapshotSum)); err != nil {
		return err
	}
	return errors.Join(syncDir(path), os.RemoveAll(path), syncDir(s.path))
}

// syncStep is how much of a snapshot is written between two syncs.
const syncStep = 4 << 20

// checksummedSink writes meta.sum after the rest of the snapshot is complete. It syncs while it writes: one
// sync of hundreds of megabytes would delay the log's syncs so long that the disk may count as stalled.
// Measured with 500 MB beside single appends, three runs each: the longest append took 15–38 ms with these
// syncs, and 92–172 ms without.
type checksummedSink struct {
	raft.SnapshotSink
	path     string
	file     *os.File // the content, to sync it
	unsynced int      // bytes written since the last sync
	done     bool
}

// Write writes a part of the content.
func (s *checksummedSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	s.unsynced += n
	if err == nil && s.unsynced >= syncStep {
		s.unsynced = 0
		err = fdatasync(s.file)
	}
	return n, err
}

// Close makes the snapshot exist. Calling it again does nothing.
func (s *checksummedSink) Close() error {
	if s.done {
		return nil
	}
	s.done = true
	_ = s.file.Close() // the file was only opened to sync it
	err := s.SnapshotSink.Close()
	if err == nil {
		err = s.seal()
	}
	if err != nil {
		// The library counts it among the snapshots that it retains.
		err = errors.Join(err, os.RemoveAll(s.path))
	}
	return err
}

func (s *checksummedSink) seal() error {
	meta, err := readBounded(filepath.Join(s.path, snapshotMeta), maxSnapshotMeta)
	if err != nil {
		return err
	}
	// This also syncs the snapshot's directory, which the library does not.
	return saveFile(filepath.Join(s.path, snapshotSum), metaSum(meta))
}

// Cancel discards the snapshot. Calling it after Close does nothing.
func (s *checksummedSink) Cancel() error {
	if s.done {
		return nil
	}
	s.done = true
	_ = s.file.Close()
	return s.SnapshotSink.Cancel()
}

func metaSum(meta []byte) []byte {
	return fmt.Appendf(nil, "%08x\n", crc32.Checksum(meta, castagnoli))
}

// fileMeta is the content of meta.json, as raft.FileSnapshotStore writes it.
type fileMeta struct {
	raft.SnapshotMeta
	CRC []byte
}

// readSnapshotMeta reads a snapshot's meta.json and checks it. The error is os.ErrNotExist for a snapshot
// that was never completed.
func readSnapshotMeta(path string) (fileMeta, error) {
	sum, err := os.ReadFile(filepath.Join(path, snapshotSum))
	if err != nil {
		return fileMeta{}, err
	}
	damaged := func(format string, a ...any) (fileMeta, error) {
		return fileMeta{}, &DamagedError{Path: path, What: fmt.Sprintf(format, a...)}
	}
	content, err := readBounded(filepath.Join(path, snapshotMeta), maxSnapshotMeta)
	if err != nil {
		return damaged("%v", err)
	}
	if !bytes.Equal(sum, metaSum(content)) {
		return damaged("the checksum of %s does not match", snapshotMeta)
	}
	var m fileMeta
	if err := json.Unmarshal(content, &m); err != nil {
		return damaged("%s: %v", snapshotMeta, err)
	}
	if m.ID != filepath.Base(path) {
		return damaged("it is the snapshot %s", m.ID)
	}
	return m, nil
}

// verifySnapshot reads all of a snapshot.
func verifySnapshot(path string) (fileMeta, error) {
	m, err := readSnapshotMeta(path)
	if err != nil {
		return fileMeta{}, err
	}
	f, err := os.Open(filepath.Join(path, snapshotState))
	if err != nil {
		return fileMeta{}, &DamagedError{Path: path, What: err.Error()}
	}
	defer func() { _ = f.Close() }()
	sum := crc64.New(crc64.MakeTable(crc64.ECMA))
	n, err := io.Copy(sum, f)
	if err != nil {
		return fileMeta{}, &DamagedError{Path: path, What: err.Error()}
	}
	if n != m.Size || !bytes.Equal(sum.Sum(nil), m.CRC) {
		return fileMeta{}, &DamagedError{Path: path, What: "its content does not match its checksum"}
	}
	return m, nil
}

// snapshotScan is the result of Open's check of all snapshots.
type snapshotScan struct {
	good       []raft.SnapshotMeta // newest first
	unfinished []string            // paths of those that were never completed
	damaged    []string            // paths
	index      uint64              // highest index of a damaged one
	err        error               // the defect of the first damaged one
}

// best returns the newest good snapshot, or a zero one if there is none.
func (s snapshotScan) best() raft.SnapshotMeta {
	if len(s.good) == 0 {
		return raft.SnapshotMeta{}
	}
	return s.good[0]
}

// scanSnapshots verifies all snapshots.
func scanSnapshots(path string) (snapshotScan, error) {
	var s snapshotScan
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return s, err
	}
	for _, e := range entries {
		dir := filepath.Join(path, e.Name())
		if strings.HasSuffix(dir, tempSuffix) {
			s.unfinished = append(s.unfinished, dir)
			continue
		}
		index, ok := indexOfName(e.Name())
		if !ok {
			continue
		}
		m, err := verifySnapshot(dir)
		switch {
		case errors.Is(err, os.ErrNotExist):
			s.unfinished = append(s.unfinished, dir)
		case err != nil:
			s.damaged = append(s.damaged, dir)
			s.index = max(s.index, index)
			if s.err == nil {
				s.err = err
			}
		default:
			s.good = append(s.good, m.SnapshotMeta)
		}
	}
	slices.SortFunc(s.good, func(a, b raft.SnapshotMeta) int {
		return slices.Compare([]uint64{b.Term, b.Index}, []uint64{a.Term, a.Index})
	})
	return s, nil
}

// indexOfName returns the index in a snapshot's name, term-index-milliseconds.
func indexOfName(name string) (uint64, bool) {
	var term, index, ms uint64
	n, err := fmt.Sscanf(name, "%d-%d-%d", &term, &index, &ms)
	return index, err == nil && n == 3
}

// removeUnusable removes unfinished snapshots, for which the log was never compacted. It moves damaged ones,
// which are not needed, out of the way, and keeps as many of them as archives: a bad disk damages one after another.
func (s snapshotScan) removeUnusable(dir string, logger hclog.Logger) error {
	for _, path := range s.unfinished {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if len(s.damaged) == 0 {
		return nil
	}
	logger.Warn("moved damaged snapshots: other snapshots and the log cover their entries", "paths", s.damaged, "error",
		s.err)
	if err := os.MkdirAll(filepath.Join(dir, damagedName), 0o700); err != nil {
		return err
	}
	for _, path := range s.damaged {
		to := filepath.Join(dir, damagedName, filepath.Base(path))
		if err := errors.Join(os.RemoveAll(to), os.Rename(path, to)); err != nil {
			return err
		}
	}
	return pruneArchives(filepath.Join(dir, damagedName), filepath.Base(s.damaged[len(s.damaged)-1]))
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is too large", path)
	}
	return b, err
}
