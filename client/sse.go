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
	r  *bufio.Reader
	id string
}

func newEventReader(r io.Reader) *eventReader {
	return &eventReader{r: bufio.NewReaderSize(r, 32<<10)}
}

// next returns the next event that has data. It skips comments and empty events, and drops an incomplete last
// event.
func (s *eventReader) next() (event, error) {
	e := event{}
	size := 0
	hasData := false
	for {
		line, err := s.line()
		if err != nil {
			return event{}, err
		}
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
}

// line returns one line without its end. The result is valid until the next call.
func (s *eventReader) line() ([]byte, error) {
	var long []byte
	for {
		part, err := s.r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if long = append(long, part...); len(long) > maxEventBytes {
				return nil, errEventTooLarge
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if long != nil {
			part = append(long, part...)
		}
		return bytes.TrimRight(part, "\r\n"), nil
	}
}
