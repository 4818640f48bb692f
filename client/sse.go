package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxEventBytes is the maximum size of one server-sent event: a value of 1 MiB in base64, its key, and some margin.
const maxEventBytes = 4 << 20

var errEventTooLarge = errors.New("event is too large")

// event is one server-sent event. id is that of the latest event that had one.
type event struct {
	id, name string
	data     []byte
}

// eventReader decodes a stream of server-sent events in bounded memory.
type eventReader struct {
	lines *bufio.Scanner
	id    string
}

func newEventReader(r io.Reader) *eventReader {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 32<<10), maxEventBytes)
	return &eventReader{lines: lines}
}

// next returns the next event that has data. It skips comments and empty events, and drops an incomplete last
// event.
func (s *eventReader) next() (event, error) {
	e := event{}
	size := 0
	hasData := false
	for s.lines.Scan() {
		line := s.lines.Bytes()
		if size += len(line); size > maxEventBytes {
			return event{}, errEventTooLarge
		}
		if len(line) == 0 {
			if hasData {
				e.id = s.id
				return e, nil
			}
			e, size = event{}, 0
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			s.id = string(value)
		case "event":
			e.name = string(value)
		case "data":
			if hasData {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
			hasData = true
		}
	}
	if err := s.lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return event{}, errEventTooLarge
	} else if err != nil {
		return event{}, err
	}
	return event{}, io.EOF
}
