import java.io.IOException;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.Collections;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.BroadcastOpFactory;
import net.spy.memcached.MemcachedNode;
import net.spy.memcached.TapClient;
import net.spy.memcached.TapConnectionProvider;
import net.spy.memcached.ops.Operation;
import net.spy.memcached.ops.OperationStatus;
import net.spy.memcached.ops.TapOperation;
import net.spy.memcached.tapmessage.MessageBuilder;
import net.spy.memcached.tapmessage.ResponseMessage;
import net.spy.memcached.tapmessage.TapAck;
import net.spy.memcached.tapmessage.TapOpcode;
import net.spy.memcached.tapmessage.TapResponseFlag;
import net.spy.memcached.tapmessage.TapStream;

/**
 * One TAP stream, read with spymemcached's TapClient and printed as one JSON object a line.
 *
 * <pre>
 * TapPeer HOST PORT dump NAME
 * TapPeer HOST PORT backfill NAME SECONDS
 * TapPeer HOST PORT custom NAME [backfill=SECONDS] [vbuckets=3,5] [ack] [keys] [dump] [checkpoint=3:9]
 * </pre>
 *
 * It ends when the stream is complete, which it says in its last line, or when standard input ends.
 * Keys and values are in hex, so that nothing has to be escaped.
 */
public final class TapPeer {
  private static final long POLL_MS = 20;

  private TapPeer() {}

  public static void main(String[] words) throws Exception {
    BackfillingClient client =
        new BackfillingClient(new InetSocketAddress(words[0], Integer.parseInt(words[1])));
    TapStream stream = begin(client, Arrays.copyOfRange(words, 2, words.length));
    endWithInput(client);
    PrintStream out = System.out;
    while (client.hasMoreMessages()) {
      // A call that gives nothing is what lets the client send one acknowledgement.
      ResponseMessage message = client.getNextMessage(POLL_MS, TimeUnit.MILLISECONDS);
      if (message != null) {
        out.println(line(message));
        out.flush();
      }
    }
    out.println("{\"end\": \"" + (stream.isCompleted() ? "complete" : "broken") + "\"}");
    out.flush();
    client.shutdown();
    System.exit(0);
  }

  private static TapStream begin(BackfillingClient client, String[] words) throws Exception {
    String name = words[1].isEmpty() ? null : words[1];
    switch (words[0]) {
      case "dump":
        return client.tapDump(name);
      case "backfill":
        return client.tapBackfill(name, Long.parseLong(words[2]));
      case "custom":
        MessageBuilder builder = new MessageBuilder();
        for (String word : Arrays.copyOfRange(words, 2, words.length)) {
          apply(builder, word);
        }
        return client.tapCustom(name, builder.getMessage());
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  private static void apply(MessageBuilder builder, String word) {
    String[] parts = word.split("=", 2);
    switch (parts[0]) {
      case "backfill":
        builder.doBackfill(Long.parseLong(parts[1]));
        break;
      case "vbuckets":
        String[] texts = parts[1].split(",");
        short[] numbers = new short[texts.length];
        for (int i = 0; i < texts.length; i++) {
          numbers[i] = Short.parseShort(texts[i]);
        }
        builder.specifyVbuckets(numbers);
        break;
      case "ack":
        builder.supportAck();
        break;
      case "keys":
        builder.keysOnly();
        break;
      case "dump":
        builder.doDump();
        break;
      case "checkpoint":
        Map<Short, Long> pairs = new TreeMap<>();
        if (parts.length > 1) {
          String[] pair = parts[1].split(":");
          pairs.put(Short.valueOf(pair[0]), Long.valueOf(pair[1]));
        }
        builder.getMessage().setFlags(net.spy.memcached.tapmessage.TapRequestFlag.CHECKPOINT);
        builder.getMessage().setvBucketCheckpoints(pairs);
        break;
      default:
        throw new IllegalArgumentException(word);
    }
  }

  private static void endWithInput(BackfillingClient client) {
    Thread reader =
        new Thread(
            () -> {
              try {
                while (System.in.read() >= 0) {
                  continue;
                }
              } catch (IOException error) {
                // as good as its end
              }
              System.exit(0);
            });
    reader.setDaemon(true);
    reader.start();
  }

  private static String line(ResponseMessage message) {
    boolean item = message.getOpcode() == TapOpcode.MUTATION;
    StringBuilder text = new StringBuilder("{");
    text.append("\"op\": \"").append(message.getOpcode()).append('"');
    text.append(", \"vbucket\": ").append(message.getVbucket());
    text.append(", \"opaque\": ").append(message.getOpaque());
    text.append(", \"cas\": ").append(Long.toUnsignedString(message.getCas()));
    text.append(", \"ttl\": ").append(message.getTTL() & 0xff);
    text.append(", \"fixed\": ")
        .append(message.getFlags().contains(TapResponseFlag.TAP_FLAG_NETWORK_BYTE_ORDER));
    text.append(", \"empty\": ").append(message.getFlags().contains(TapResponseFlag.TAP_NO_VALUE));
    text.append(", \"key\": \"").append(hex(message.getKey().getBytes())).append('"');
    if (item) {
      text.append(", \"flags\": ").append(Integer.toUnsignedString(message.getItemFlags()));
      text.append(", \"expiry\": ").append(message.getItemExpiry());
      text.append(", \"value\": \"").append(hex(message.getValue())).append('"');
    }
    if (message.getOpcode() == TapOpcode.VBUCKETSET) {
      text.append(", \"state\": ").append(message.getVBucketState());
    }
    return text.append('}').toString();
  }

  static String hex(byte[] bytes) {
    StringBuilder text = new StringBuilder();
    for (byte each : bytes) {
      text.append(String.format("%02x", each));
    }
    return text.toString();
  }

  /** TapClient has no method for its library's backfill operation; this is its tapDump for it. */
  private static final class BackfillingClient extends TapClient {
    private final InetSocketAddress address;

    BackfillingClient(InetSocketAddress address) {
      super(address);
      this.address = address;
    }

    TapStream tapBackfill(String id, long seconds) throws IOException {
      TapConnectionProvider connection =
          new TapConnectionProvider(Collections.singletonList(address));
      TapStream stream = new TapStream();
      BroadcastOpFactory factory =
          (MemcachedNode node, CountDownLatch latch) -> {
            Operation made =
                connection
                    .getOpFactory()
                    .tapBackfill(id, seconds, new Queued(connection, node, latch));
            stream.addOp((TapOperation) made);
            return made;
          };
      connection.broadcastOp(factory);
      synchronized (omap) {
        omap.put(stream, connection);
      }
      return stream;
    }

    private final class Queued implements TapOperation.Callback {
      private final TapConnectionProvider connection;
      private final MemcachedNode node;
      private final CountDownLatch latch;

      Queued(TapConnectionProvider connection, MemcachedNode node, CountDownLatch latch) {
        this.connection = connection;
        this.node = node;
        this.latch = latch;
      }

      @Override
      public void receivedStatus(OperationStatus status) {}

      @Override
      public void gotData(ResponseMessage message) {
        rqueue.add(message);
        messagesRead++;
      }

      @Override
      public void gotAck(MemcachedNode from, TapOpcode opcode, int opaque) {
        rqueue.add(new TapAck(connection, from, opcode, opaque, this));
      }

      @Override
      public void complete() {
        latch.countDown();
      }
    }
  }
}
